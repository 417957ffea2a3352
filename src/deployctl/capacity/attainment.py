"""Which requests met the SLO, which missed it and by what; only those that a look can judge without bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.probe import Floats, Look, Requests, Slo

FACTORS = ("failures", "ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Judged:
    """Requests in order of intended start, each a hit or a miss. ``horizon_s``: every earlier start is in here.

    ``margin``: the largest ratio of a latency to its limit; at most 1 for a hit, infinite for a failure. ``place``:
    the position in the look's finished requests, -1 for one that is a miss before it has ended.
    """

    start_s: Floats
    met: NDArray[np.bool_]
    margin: Floats
    place: NDArray[np.int64]
    horizon_s: float

    def __len__(self) -> int:
        return len(self.start_s)

    def since(self, start_s: float) -> Judged:
        """Only the requests that were to start at ``start_s`` or later."""
        first = int(np.searchsorted(self.start_s, start_s))
        return Judged(self.start_s[first:], self.met[first:], self.margin[first:], self.place[first:], self.horizon_s)


def misses(requests: Requests, slo: Slo) -> dict[str, NDArray[np.bool_]]:
    """For each factor (``FACTORS``) which requests broke it; a failed request breaks ``failures`` alone."""
    ok = requests.ok
    broken = {"failures": ~ok}
    for name, values, limit in (
        ("ttft", requests.ttft_s, slo.ttft_s),
        ("tpot", requests.tpot_s, slo.tpot_s),
        ("e2e", requests.e2e_s, slo.e2e_s),
    ):
        broken[name] = np.zeros(len(ok), dtype=bool) if limit is None else ok & ~(values <= limit)
    return broken


def met(requests: Requests, slo: Slo) -> NDArray[np.bool_]:
    """Which requests met every threshold at once; failures never do."""
    broken = misses(requests, slo)
    return ~(broken["failures"] | broken["ttft"] | broken["tpot"] | broken["e2e"])


def margins(requests: Requests, slo: Slo) -> Floats:
    """Of each request the largest ratio of a latency to its limit; 0 without a limit, infinite for a failure."""
    worst = np.where(requests.ok, 0.0, np.inf)
    for values, limit in ((requests.ttft_s, slo.ttft_s), (requests.tpot_s, slo.tpot_s), (requests.e2e_s, slo.e2e_s)):
        if limit is not None:
            worst = np.maximum(worst, values / limit)
    return worst


def judge(look: Look, slo: Slo) -> Judged:
    """The outcomes that a look may count.

    A look sees quick answers before slow ones, so counting "whatever has finished" would flatter the host. Requests are
    therefore taken in order of intended start and only up to the first one whose outcome is still open; an open
    request that has already exceeded a threshold is a miss, not open.
    """
    late = _already_missed(look, slo)
    open_starts = look.pending_start_s[~late]
    horizon = float(open_starts.min()) if len(open_starts) else look.now_s
    starts = np.concatenate([look.requests.start_s, look.pending_start_s[late]])
    outcome = np.concatenate([met(look.requests, slo), np.zeros(int(late.sum()), dtype=bool)])
    ratio = np.concatenate([margins(look.requests, slo), np.full(int(late.sum()), np.inf)])
    place = np.concatenate([np.arange(len(look.requests)), np.full(int(late.sum()), -1)])
    order = np.argsort(starts, kind="stable")
    order = order[starts[order] < horizon]
    return Judged(starts[order], outcome[order], ratio[order], place[order], horizon)


def _already_missed(look: Look, slo: Slo) -> NDArray[np.bool_]:
    age = look.now_s - look.pending_start_s
    late = np.zeros(len(age), dtype=bool)
    if slo.e2e_s is not None:
        late |= age > slo.e2e_s
    if slo.ttft_s is not None and look.pending_ttft_s is not None:
        first = look.pending_ttft_s
        with np.errstate(invalid="ignore"):
            late |= np.where(np.isnan(first), age > slo.ttft_s, first > slo.ttft_s)
    return late


def limiting_factor(requests: Requests, slo: Slo) -> str | None:
    """The factor that most of the misses break (``ttft``, ``tpot``, ``e2e`` or ``failures``); None without a miss."""
    counts = {name: int(broken.sum()) for name, broken in misses(requests, slo).items()}
    worst = max(FACTORS, key=lambda name: counts[name])
    return worst if counts[worst] else None
