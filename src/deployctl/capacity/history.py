"""What the probes of one search have shown so far, level by level, and what they lead to expect of other levels."""

from __future__ import annotations

import math

from deployctl.capacity.evidence import NOTHING, Evidence, Series, weigh

_BLIND_CYCLE_S = 20.0  # a user's mean cycle before the first request has been seen
_ENOUGH_CYCLES = 12.0  # cycles after which a level's own inflation counts fully


class History:
    """Outcomes of every level that was visited; an earlier visit's outcomes count again at the next."""

    def __init__(self) -> None:
        self._series: dict[int, Series] = {}
        self._evidence: dict[int, Evidence] = {}

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels with outcomes, ascending."""
        return tuple(sorted(self._series))

    def series(self, users: int) -> Series:
        """All outcomes of a level so far."""
        return self._series.get(users, NOTHING)

    def evidence(self, users: int, running: Evidence | None = None) -> Evidence:
        """The figures of a level, the running one's first; those of an empty one where it was never visited."""
        if running is not None and running.users == users:
            return running
        return self._evidence.get(users) or weigh(NOTHING, users)

    def all(self, running: Evidence | None = None) -> list[Evidence]:
        """The figures of every level with outcomes."""
        found = {**self._evidence, **({running.users: running} if running is not None and running.requests else {})}
        return [found[users] for users in sorted(found)]

    def add(self, series: Series, evidence: Evidence) -> None:
        """Replace a level's outcomes by ``series``, which includes the earlier ones, and their figures."""
        if len(series.missed):
            self._series[evidence.users] = series
            self._evidence[evidence.users] = evidence

    def cycle_s(self, users: int, running: Evidence | None = None) -> float:
        """A user's mean cycle at a level, from the nearest level that was seen."""
        known = [found for found in self.all(running) if found.cycle_s > 0]
        nearest = min(known, key=lambda found: abs(math.log(found.users / users)), default=None)
        return _BLIND_CYCLE_S if nearest is None else nearest.cycle_s

    def inflation_ratio(self, usual: dict[int, float], running: Evidence | None = None) -> float:
        """How far the inflation that was seen is from the ``usual`` one of the same levels (a geometric mean).

        One figure for all levels: comparing a level's own noisy estimate with another's guess would send the search to
        and fro between them.
        """
        known = [(found, min(found.cycles, _ENOUGH_CYCLES)) for found in self.all(running) if found.users in usual]
        logs = math.fsum(weight * math.log(found.inflation / usual[found.users]) for found, weight in known)
        total = math.fsum(weight for _, weight in known)
        return math.exp(logs / (total + _ENOUGH_CYCLES / 2)) if known else 1.0

    def control(self, running: Evidence | None = None) -> tuple[float, float] | None:
        """Share of the variance that the control variate leaves, and its inflation, where it was used longest."""
        known = [found for found in self.all(running) if found.controlled]
        best = max(known, key=lambda found: found.requests, default=None)
        return None if best is None else (best.left, best.left_inflation)
