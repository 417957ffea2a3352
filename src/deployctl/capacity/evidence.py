"""What a level's outcomes are worth: the steady part, its dependence, and the effective counts that tests may use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from deployctl.capacity.attainment import Judged, judge
from deployctl.capacity.control import Control
from deployctl.capacity.probe import Floats, Look, Slo
from deployctl.stats.batches import batch_means, shrunk_inflation, slowest
from deployctl.stats.binomial import clopper_pearson
from deployctl.stats.sequential import log_e_above, log_e_below, log_e_mean_above, mix
from deployctl.stats.warmup import mser5

WARM_CYCLES = 1.25
"""Mean cycles (think + answer) that are always discarded after a level change.

A closed loop that starts with everybody thinking is steady after one: in simulations of eleven hosts the attainment of
the second cycle is within noise of the long-run one, that of the first up to 0.025 too good.
"""

LEAST_CYCLES = 10.0
"""Mean cycles to be watched before a level may pass: what clusters over a cycle or two cannot be seen sooner."""

_NEAR_SHARE = 0.15


@dataclass(frozen=True)
class Series:
    """Steady outcomes of one level in order of start, from one visit or from several; with what they took.

    ``twin``: the deviation of the control variate from its mean (``control``), 0 where there is none; ``doubt``: the
    standard error of that mean, ``least`` the smallest deviation that is possible.
    """

    missed: Floats  # 1.0 for a miss
    margin: Floats
    seconds: float  # that the steady part lasted
    twin: Floats
    doubt: float = 0.0
    least: float = 0.0

    def __add__(self, other: Series) -> Series:
        return Series(
            np.concatenate([self.missed, other.missed]),
            np.concatenate([self.margin, other.margin]),
            self.seconds + other.seconds,
            np.concatenate([self.twin, other.twin]),
            max(self.doubt, other.doubt),
            min(self.least, other.least),
        )


NOTHING = Series(np.zeros(0), np.zeros(0), 0.0, np.zeros(0))


@dataclass(frozen=True)
class Evidence:
    """A level in figures; ``effective_n`` is what its ``requests`` are worth if they were independent.

    ``low`` and ``high`` bound the attainment at 95 % (two-sided, one look). ``cycle_s`` is a user's mean cycle.
    """

    users: int
    requests: int
    attainment: float
    effective_n: float
    low: float
    high: float
    cycle_s: float
    cycles: float
    inflation: float
    series: Series

    @property
    def hits(self) -> float:
        """Effective hits."""
        return self.attainment * self.effective_n if self.requests else 0.0

    @property
    def misses(self) -> float:
        """Effective misses."""
        return (1.0 - self.attainment) * self.effective_n if self.requests else 0.0

    @property
    def gain(self) -> float:
        """How many times fewer requests the control variate makes do (1 without one)."""
        return max(1.0, self.effective_n * self.inflation / self.requests) if self.requests else 1.0

    def for_passing(self, target: float) -> float:
        """Log evidence against "the attainment is below ``target``"; none before enough cycles were watched."""
        if self.cycles < LEAST_CYCLES:
            return 0.0
        series = self.series
        missed = float(series.missed.sum()) / self.inflation
        plain = log_e_above(self.requests / self.inflation - missed, missed, target)
        if not series.twin.any():
            return plain
        pieces = [plain]
        for share in _SHARES:
            values = 1.0 - series.missed + share * (series.twin - series.doubt)
            least = share * (series.least - series.doubt)
            pieces.append(log_e_mean_above(values, target, least, _inflation_left(series, share, self)))
        return mix(np.array(pieces), _WEIGHTS)

    def for_failing(self, target: float) -> float:
        """Log evidence against "the attainment is at least ``target``"."""
        if not self.requests:
            return 0.0
        series = self.series
        missed = float(series.missed.sum()) / self.inflation
        plain = log_e_below(self.requests / self.inflation - missed, missed, target)
        if not series.twin.any():
            return plain
        pieces = [plain]
        for share in _SHARES:
            values = series.missed - share * (series.twin + series.doubt)
            least = -share * (1.0 + series.least + series.doubt)
            pieces.append(log_e_mean_above(values, 1.0 - target, least, _inflation_left(series, share, self)))
        return mix(np.array(pieces), _WEIGHTS)


_SHARES = (0.5, 1.0)  # of the twin's deviation that is taken off; which of them helps, the data show
_WEIGHTS = np.array([0.4, 0.2, 0.4])


def steady(look: Look, slo: Slo, control: Control | None = None) -> tuple[Series, float]:
    """The steady, decidable part of one visit, and the second at which it begins."""
    judged = judge(look, slo)
    starts = len(look.requests) + len(look.pending_start_s)
    if starts == 0:
        return NOTHING, look.now_s
    warm_until = max(WARM_CYCLES * look.users * look.now_s / starts, _settled(judged))
    kept = judged.since(warm_until)
    lasted = max(0.0, kept.horizon_s - warm_until)
    missed = (~kept.met).astype(np.float64)
    if control is None or len(missed) == 0:
        return Series(missed, kept.margin, lasted, np.zeros(len(missed))), warm_until
    mean, doubt = control.expected(look.users, len(missed))
    deviations = np.append(control.deviations(look, mean), 0.0)  # the last one is that of requests still open
    return Series(missed, kept.margin, lasted, deviations[kept.place], doubt, -mean), warm_until


def weigh(series: Series, users: int, slots: int | None = None) -> Evidence:
    """Put figures to the outcomes of one level."""
    count = len(series.missed)
    if count == 0:
        return Evidence(users, 0, float("nan"), 0.0, 0.0, 1.0, float("nan"), 0.0, 1.0, series)
    spread = inflation(series, users, slots)
    effective = count / spread
    share = 1.0 - float(series.missed.mean())
    plain = Evidence(
        users, count, share, effective, 0.0, 1.0, users * series.seconds / count, count / users, spread, series
    )
    share, effective = _controlled(plain)
    low, high = clopper_pearson(share * effective, effective)
    return replace(plain, attainment=share, effective_n=effective, low=low, high=high)


def _controlled(plain: Evidence) -> tuple[float, float]:
    """Attainment and effective requests by the control variate, where it varies less than the plain mean."""
    series, best = plain.series, (plain.attainment, plain.effective_n)
    if not series.twin.any():
        return best
    for share in _SHARES:
        left = series.missed - share * series.twin
        attainment = 1.0 - float(left.mean())
        if not 0.0 < attainment < 1.0:
            continue
        independent = plain.requests / _inflation_left(series, share, plain)
        # One more discordant request than were seen: none seen is no proof that there are none.
        variance = (float(left.var()) + 1.0 / independent) / independent + (share * series.doubt) ** 2
        effective = attainment * (1.0 - attainment) / variance
        if effective > 1.1 * best[1]:
            best = (attainment, effective)
    return best


def _inflation_left(series: Series, share: float, plain: Evidence) -> float:
    """Variance inflation of what the control variate leaves; the plain one where host and twin hardly ever differ."""
    size = max(2 * plain.users, 4)
    if len(series.missed) // size < 2:
        return plain.inflation
    found = batch_means(series.missed - share * series.twin, size)
    differ = np.abs(series.missed - (series.twin - series.least)) > 0.5
    used = differ[len(differ) - found.batches * size :].reshape(found.batches, size)
    touched = min(int(used.any(axis=1).sum()), found.batches - 1)
    return max(1.0, (8.0 * plain.inflation + touched * found.inflation) / (8.0 + touched))


def inflation(series: Series, users: int, slots: int | None = None) -> float:
    """Variance inflation of a level's outcomes, over batches of two cycles and longer."""
    size = max(2 * users, 4)
    few = float(series.missed.mean()) <= _NEAR_SHARE
    near = slowest(series.margin, _NEAR_SHARE) if few else None
    return shrunk_inflation(series.missed, size, expected_inflation(users, slots), near_misses=near)


def expected_inflation(users: int, slots: int | None = None) -> float:
    """Variance inflation before the data say: one user waits for nobody, few wait seldom, a queue makes clusters."""
    if users == 1:
        return 1.0
    return 1.5 if slots is not None and users <= slots else 5.0


def _settled(judged: Judged) -> float:
    """The second from which on the slowness is steady, by MSER-5."""
    margin = judged.margin[np.isfinite(judged.margin)]
    if len(margin) < 50:
        return 0.0
    capped = np.minimum(margin, np.quantile(margin, 0.98))
    cut = mser5(capped, most=0.2, worth=0.1)
    return float(judged.start_s[np.isfinite(judged.margin)][cut]) if cut else 0.0
