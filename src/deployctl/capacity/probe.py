"""What the search knows of the world: a callable that holds a number of users and shows what they felt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Verdict = Literal["pass", "fail", "inconclusive", "invalid"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Slo:
    """Thresholds on one request in seconds (None: not asked) and the share that must meet all of them."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.95


@dataclass(frozen=True)
class Requests:
    """Finished requests of one probe, in order of their intended start: parallel arrays of one length.

    Times in seconds. ``start_s`` is the intended start on the probe's own clock (0 = the level was set). A failed,
    timed-out or truncated request has ``ok`` False and infinite latencies; it never meets an SLO and is never dropped.
    ``tpot_s`` is 0 for a one-token answer.
    """

    user: NDArray[np.int64]
    start_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    ok: NDArray[np.bool_]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_s)


@dataclass(frozen=True, eq=False)  # one look is another's equal only if it is the same: what follows from it is kept
class Look:
    """What a running probe shows when it asks "go on?".

    ``now_s`` is the probe's clock. ``pending_start_s`` are the intended starts of the requests that are still open:
    without them a short look would see the quick requests only. ``pending_ttft_s``, where the prober knows it, runs
    parallel to it: the TTFT of the open requests that have had their first token, NaN for those that still wait for it;
    with it a request that has waited too long is a miss before it ends. ``pending_user``, also parallel where known,
    says whose they are. ``invalid`` names the gates that have tripped so far.
    """

    users: int
    now_s: float
    requests: Requests
    pending_start_s: Floats
    invalid: tuple[str, ...] = ()
    pending_ttft_s: Floats | None = None
    pending_user: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class ProbeRun:
    """A probe that has ended: everything that it saw, how long it held the host, and what makes it void."""

    users: int
    seconds: float  # from setting the level until the host was idle again, as billed to the budget
    last: Look
    invalid_reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


class Prober(Protocol):
    """Hold ``users`` closed-loop users; every second or so call ``go_on(look)`` and stop once it says False.

    The prober drains the host before it returns. It enforces ``max_seconds`` itself.
    """

    def __call__(self, users: int, go_on: Callable[[Look], bool], max_seconds: float) -> ProbeRun:
        """Run one probe of at most ``max_seconds``."""
        ...
