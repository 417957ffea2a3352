"""What the probes of one search have shown so far, level by level, and what they lead to expect of other levels."""

from __future__ import annotations

import math

from deployctl.capacity.evidence import NOTHING, Evidence, Series, expected_inflation, weigh

_BLIND_CYCLE_S = 20.0  # a user's mean cycle before the first request has been seen


class History:
    """Outcomes of every level that was visited; an earlier visit's outcomes count again at the next."""

    def __init__(self, slots: int | None) -> None:
        self._slots = slots
        self._series: dict[int, Series] = {}
        self._evidence: dict[int, Evidence] = {}

    @property
    def levels(self) -> tuple[int, ...]:
        """Levels with outcomes, ascending."""
        return tuple(sorted(self._series))

    def series(self, users: int) -> Series:
        """All outcomes of a level so far."""
        return self._series.get(users, NOTHING)

    def evidence(self, users: int) -> Evidence:
        """The figures of a level; those of an empty one where it was never visited."""
        return self._evidence.get(users) or weigh(NOTHING, users)

    def add(self, users: int, series: Series) -> None:
        """Replace a level's outcomes by ``series``, which includes the earlier ones."""
        if len(series.missed):
            self._series[users] = series
            self._evidence[users] = weigh(series, users, self._slots)

    def cycle_s(self, users: int, running: Evidence | None = None) -> float:
        """A user's mean cycle at a level, from the nearest level that was seen."""
        nearest = self._nearest(users, running)
        return nearest.cycle_s if nearest is not None and nearest.cycle_s > 0 else _BLIND_CYCLE_S

    def inflation(self, users: int, running: Evidence | None = None) -> float:
        """Variance inflation to expect at a level, from the nearest level that was seen."""
        nearest = self._nearest(users, running)
        expected = expected_inflation(users, self._slots)
        return expected if nearest is None else max(1.0, math.sqrt(nearest.inflation * expected), nearest.inflation)

    def gain(self, possible: bool) -> float:
        """How many times fewer requests a control variate makes do: as at the levels where it was used so far."""
        if not possible:
            return 1.0
        seen = [found.gain for found in self._evidence.values() if found.series.twin.any()]
        return max(1.0, sum(seen) / len(seen)) if seen else 1.5

    def _nearest(self, users: int, running: Evidence | None) -> Evidence | None:
        known = [self._evidence[level] for level in self.levels if running is None or level != running.users]
        if running is not None and running.requests:
            known.append(running)
        return min(known, key=lambda evidence: abs(math.log(evidence.users / users)), default=None)
