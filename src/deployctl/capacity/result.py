"""What a search is given (prior, budget) and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deployctl.capacity.probe import Verdict
from deployctl.capacity.twin import Demand

Mode = Literal["quick", "standard", "certify"]
Status = Literal["certified", "not_met", "inconclusive", "invalid", "at_least"]


@dataclass(frozen=True)
class Prior:
    """What is known before the first probe; it steers the search and is never evidence.

    ``users_guess``: a guess of the capacity, from the one-user baseline. ``slots``: requests served at once.
    ``demand``: the laws from which the users' prompts, answers and pauses are drawn, where they are known exactly (the
    engine writes as many tokens as it is asked to): with them a twin can take the luck of the draw out of a probe.
    """

    users_guess: int | None = None
    slots: int | None = None
    demand: Demand | None = None


@dataclass(frozen=True)
class Budget:
    """How long the host may be held. ``seconds`` None: the mode's own limit (``certify``: a safety stop)."""

    seconds: float | None = None
    mode: Mode = "standard"


@dataclass(frozen=True)
class ProbeSummary:
    """One probe. Latencies in seconds, with p50, p95 and p99; infinite where that many requests failed.

    ``requests``, ``attainment`` and its interval are of the steady part, earlier visits to the level included, and
    ``effective_n`` is what that part is worth in independent requests. ``discarded``: the warm-up, and what was
    still open when the probe was decided. ``broken_by``: misses per factor in the steady part of this probe.
    """

    users: int
    verdict: Verdict
    requests: int
    effective_n: float
    attainment: float
    attainment_low: float
    attainment_high: float
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    e2e_s: dict[str, float]
    tokens_per_s: float
    invalid_reasons: tuple[str, ...]
    seconds: float
    broken_by: dict[str, int] = field(default_factory=dict)
    discarded: int = 0


@dataclass(frozen=True)
class Result:
    """The answer of a search.

    ``status``: ``certified`` (at least ``certified_users`` hold, at the given one-sided ``confidence``), ``at_least``
    (so does the search's maximum), ``not_met`` (not even one user), ``inconclusive`` (nothing proven either way in the
    budget), ``invalid`` (the measurement itself cannot be trusted). ``at_most_users``: more than that were shown not to
    hold; None where no upper end was proven. ``limited_by``: the factor that the first misses beyond it break.
    ``seconds_by_activity`` sums to the host time used: ``warm-up``, ``deciding``, ``draining``.
    """

    status: Status
    certified_users: int
    at_most_users: int | None
    confidence: float
    limited_by: str | None
    probes: tuple[ProbeSummary, ...]
    seconds_by_activity: dict[str, float]
    notes: tuple[str, ...] = ()
