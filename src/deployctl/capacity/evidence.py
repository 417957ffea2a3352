"""What a level's outcomes are worth: the steady part, its dependence, and the effective counts that tests may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from deployctl.capacity.attainment import Judged, judge
from deployctl.capacity.control import Control
from deployctl.capacity.probe import Floats, Look, Slo
from deployctl.stats.batches import batch_means, shrunk_inflation, slowest
from deployctl.stats.binomial import clopper_pearson
from deployctl.stats.sequential import BETTER, Alternatives, log_e_above, log_e_below, log_e_mean_above, mix
from deployctl.stats.wander import Wander
from deployctl.stats.warmup import mser5

WARM_CYCLES = 1.25
"""Mean cycles (think + answer) that are always discarded after a level change.

A closed loop that starts with everybody thinking is steady after one: in simulations of eleven hosts the attainment of
the second cycle is within noise of the long-run one, that of the first up to 0.025 too good.
"""

LEAST_CYCLES = 10.0
"""Mean cycles to be watched before a level may pass: what clusters over a cycle or two cannot be seen sooner."""

EXPLORED_CYCLES = 3.0
"""First cycles at a level, which only guide the search: a level left within them has had no chance to pass."""

_NEAR_SHARE = 0.15
_BATCH_CYCLES = 2  # of the batches whose means show how outcomes cluster
_LEAST_LEFT = 0.2  # share of the variance that a control variate leaves, at least
_TRUST = 4.0  # batches that the plain inflation is worth as a guess of what the control variate leaves


@dataclass(frozen=True)
class Series:
    """Steady outcomes of one level in order of start, from one visit or from several; with what they took.

    ``twin``: the deviation of the control variate from its mean (``control``), 0 where there is none; ``doubt``: the
    standard error of that mean, ``least`` and ``most`` the deviations that are possible.
    """

    missed: Floats  # 1.0 for a miss
    margin: Floats
    seconds: float  # that the steady part lasted
    twin: Floats
    doubt: float = 0.0
    least: float = 0.0
    most: float = 0.0

    def __add__(self, other: Series) -> Series:
        return Series(
            np.concatenate([self.missed, other.missed]),
            np.concatenate([self.margin, other.margin]),
            self.seconds + other.seconds,
            np.concatenate([self.twin, other.twin]),
            max(self.doubt, other.doubt),
            min(self.least, other.least),
            max(self.most, other.most),
        )

    def after(self, skipped: int) -> Series:
        """All but the first ``skipped`` outcomes."""
        return replace(self, missed=self.missed[skipped:], margin=self.margin[skipped:], twin=self.twin[skipped:])


@dataclass(frozen=True)
class Unrest:
    """A host whose speed wanders. ``relative``: variance that one (relative speed)² adds to the attainment at a level,
    over that of a single outcome.
    """

    wander: Wander
    relative: float

    def variance(self, lasted_s: float, batch_s: float) -> float:
        """What the wandering adds to the variance of a mean over ``lasted_s``, in single outcomes' variances.

        Batches of ``batch_s`` have shown the part of it that is quicker than they are long.
        """
        x = max(batch_s, 1e-9) / self.wander.tau_s
        unseen = -math.expm1(-x) / x
        return self.relative * self.wander.variance_of_mean(lasted_s) * unseen


NOTHING = Series(np.zeros(0), np.zeros(0), 0.0, np.zeros(0))


@dataclass(frozen=True, eq=False)  # the same only as itself: what is computed of it is kept
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
    alternatives: Alternatives = BETTER
    slow_inflation: float = 0.0  # the part of it that a slowly wandering host adds

    @property
    def hits(self) -> float:
        """Effective hits."""
        return self.attainment * self.effective_n if self.requests else 0.0

    @property
    def misses(self) -> float:
        """Effective misses."""
        return (1.0 - self.attainment) * self.effective_n if self.requests else 0.0

    @property
    def committed(self) -> bool:
        """Whether the level has been watched beyond the first, exploratory cycles."""
        return self.cycles > EXPLORED_CYCLES

    @cached_property
    def controlled(self) -> bool:
        """Whether a control variate had anything to say here."""
        return bool(self.series.twin.any())

    @cached_property
    def left(self) -> float:
        """Share of the misses' variance that a control variate leaves, with one more difference than were seen."""
        series = self.series
        return (float((series.missed - series.twin).var()) + 1.0 / self.requests) / (
            float(series.missed.var()) + 1.0 / self.requests
        )

    @cached_property
    def left_inflation(self) -> float:
        """Variance inflation of what it leaves."""
        return _inflation_left(self, 1.0)

    @lru_cache(maxsize=64)  # noqa: B019 (few, and small)
    def for_passing(self, target: float) -> float:
        """Log evidence against "the attainment is below ``target``", from all but the exploratory cycles."""
        if not self.committed:
            return 0.0
        series = self.series.after(math.ceil(EXPLORED_CYCLES * self.users))
        missed = float(series.missed.sum()) / self.inflation
        plain = log_e_above(len(series.missed) / self.inflation - missed, missed, target, self.alternatives)
        if not self.controlled:
            return plain
        pieces = [plain]
        for share in _SHARES:
            values = 1.0 - series.missed + share * (series.twin - series.doubt)
            least = share * (series.least - series.doubt)
            pieces.append(log_e_mean_above(values, target, least, _inflation_left(self, share)))
        return mix(np.array(pieces), _WEIGHTS)

    @lru_cache(maxsize=64)  # noqa: B019
    def for_failing(self, target: float) -> float:
        """Log evidence against "the attainment is at least ``target``"."""
        if not self.requests:
            return 0.0
        series = self.series
        missed = float(series.missed.sum()) / self.inflation
        plain = log_e_below(self.requests / self.inflation - missed, missed, target)
        if not self.controlled:
            return plain
        pieces = [plain]
        for share in _SHARES:
            values = series.missed - share * (series.twin + series.doubt)
            least = -share * (series.most + series.doubt)
            pieces.append(log_e_mean_above(values, 1.0 - target, least, _inflation_left(self, share)))
        return mix(np.array(pieces), _WEIGHTS)


_SHARES = (0.5, 1.0)  # of the twin's deviation that is taken off; which of them helps, the data show
_WEIGHTS = np.array([0.3, 0.15, 0.55])


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
    return Series(missed, kept.margin, lasted, deviations[kept.place], doubt, -mean, 1.0 - mean), warm_until


def weigh(
    series: Series,
    users: int,
    expected_inflation: float | None = None,
    alternatives: Alternatives = BETTER,
    unrest: Unrest | None = None,
) -> Evidence:
    """Put figures to the outcomes of one level; ``expected_inflation`` is what to assume where they say too little.

    ``alternatives``: what a test for passing bets on, chosen before the first of the outcomes. ``unrest``: how the host
    wanders, which adds to the variance what the outcomes, all of one while, cannot show.
    """
    count = len(series.missed)
    if count == 0:
        return Evidence(users, 0, float("nan"), 0.0, 0.0, 1.0, float("nan"), 0.0, 1.0, series, alternatives)
    spread = inflation(series, users, expected_inflation or usual_inflation(users))
    cycle_s = users * series.seconds / count
    slow = 0.0 if unrest is None else count * unrest.variance(series.seconds, _BATCH_CYCLES * cycle_s)
    spread += slow
    effective = count / spread
    share = 1.0 - float(series.missed.mean())
    plain = Evidence(
        users, count, share, effective, 0.0, 1.0, cycle_s, count / users, spread, series, alternatives, slow
    )
    share, effective = _controlled(plain)
    low, high = clopper_pearson(share * effective, effective)
    return replace(plain, attainment=share, effective_n=effective, low=low, high=high)


def _controlled(plain: Evidence) -> tuple[float, float]:
    """Attainment and effective requests by the control variate, where it varies less than the plain mean."""
    series, best = plain.series, (plain.attainment, plain.effective_n)
    if not plain.controlled:
        return best
    for share in _SHARES:
        left = series.missed - share * series.twin
        attainment = 1.0 - float(left.mean())
        if not 0.0 < attainment < 1.0:
            continue
        independent = plain.requests / _inflation_left(plain, share)
        # One more discordant request than were seen: none seen is no proof that there are none.
        variance = (float(left.var()) + 1.0 / independent) / independent + (share * series.doubt) ** 2
        effective = attainment * (1.0 - attainment) / variance
        if effective > 1.1 * best[1]:
            best = (attainment, effective)
    return best


@lru_cache(maxsize=64)
def _inflation_left(plain: Evidence, share: float) -> float:
    """Variance inflation of what the control variate leaves; the plain one where host and twin hardly ever differ."""
    series = plain.series
    size = max(_BATCH_CYCLES * plain.users, 4)
    if len(series.missed) // size < 2:
        return plain.inflation
    found = batch_means(series.missed - share * series.twin, size)
    differ = np.abs(series.missed - (series.twin - series.least)) > 0.5
    used = differ[len(differ) - found.batches * size :].reshape(found.batches, size)
    touched = min(int(used.any(axis=1).sum()), found.batches - 1)
    usual = plain.inflation - plain.slow_inflation
    own = max(1.0, (_TRUST * usual + touched * found.inflation) / (_TRUST + touched))
    return own + plain.slow_inflation / max(plain.left, _LEAST_LEFT)


def inflation(series: Series, users: int, expected: float) -> float:
    """Variance inflation of a level's outcomes, over batches of two cycles and longer."""
    size = max(_BATCH_CYCLES * users, 4)
    few = float(series.missed.mean()) <= _NEAR_SHARE
    near = slowest(series.margin, _NEAR_SHARE) if few else None
    return shrunk_inflation(series.missed, size, expected, near_misses=near)


def usual_inflation(users: int, slots: int | None = None) -> float:
    """Variance inflation before the data say: one user waits for nobody, few wait seldom, a queue makes clusters."""
    if users == 1:
        return 1.0
    return 1.5 if slots is not None and users <= slots else min(5.0, 1.0 + 0.7 * (users - 1))


def _settled(judged: Judged) -> float:
    """The second from which on the slowness is steady, by MSER-5."""
    margin = judged.margin[np.isfinite(judged.margin)]
    if len(margin) < 50:
        return 0.0
    capped = np.minimum(margin, np.quantile(margin, 0.98))
    cut = mser5(capped, most=0.2, worth=0.1)
    return float(judged.start_s[np.isfinite(judged.margin)][cut]) if cut else 0.0
