"""Rules that find a capacity through a Prober: ours, and those that other tools decide by, for comparison.

The peers' rules are their decision rules as we read them, not the tools: all start at one user, double until a level
fails, and bisect. What they call capacity is what they would print.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.probe import Look, Slo
from deployctl.capacity.result import Budget, Prior
from deployctl.capacity.search import search
from deployctl.simulator.longrun import meets
from deployctl.simulator.prober import VirtualProber

_WARM_UP = 30  # requests that the peers' rules with a warm-up discard
_FOREVER = 1e9
_Z = 1.959964  # two-sided 95 %


@dataclass(frozen=True)
class Question:
    """What a rule is asked: the SLO, what is known before, the largest number of users to try, and our budget."""

    slo: Slo
    prior: Prior
    max_users: int
    budget: Budget


@dataclass(frozen=True)
class Interval:
    """A 95 % interval that a rule gave for the attainment at ``users``."""

    users: int
    low: float
    high: float


@dataclass(frozen=True)
class Answer:
    """What a rule says: the number that would be sold, and what it says of N* and of the levels, where it does.

    ``bracket`` is an interval for N* (its end None: open). ``decided`` is False when the rule itself says that it could
    not tell; ``invalid`` is True when it declared a probe void.
    """

    users: int
    decided: bool = True
    bracket: tuple[int, int | None] | None = None
    intervals: tuple[Interval, ...] = ()
    invalid: bool = False
    notes: tuple[str, ...] = ()


Rule = Callable[[VirtualProber, Question], Answer]


def ours(prober: VirtualProber, question: Question) -> Answer:
    """deployctl's own search."""
    result = search(prober, question.slo, question.prior, question.budget, max_users=question.max_users)
    return Answer(
        users=result.certified_users,
        decided=result.status in ("certified", "not_met", "at_least"),
        bracket=(result.certified_users, result.at_most_users),
        intervals=tuple(
            Interval(probe.users, probe.attainment_low, probe.attainment_high)
            for probe in result.probes
            if probe.verdict != "invalid" and probe.effective_n > 0
        ),
        invalid=any(probe.verdict == "invalid" for probe in result.probes),
        notes=result.notes,
    )


def bisect_points(prober: VirtualProber, question: Question, *, requests: int, warm_up: int) -> Answer:
    """Doubling, then bisection; a level passes when the share of its first ``requests`` that met the SLO does."""

    def passes(users: int) -> bool:
        met = _first_met(prober, question.slo, users, warm_up + requests)[warm_up:]
        return float(met.mean()) >= question.slo.attainment

    return Answer(_double_and_bisect(passes, question.max_users))


def wilson_goodput(prober: VirtualProber, question: Question, *, least: int = 30, most: int = 300) -> Answer:
    """Doubling, then bisection; a level is decided when a Wilson interval on raw counts excludes the target.

    (Wilson 1927; a 95 % interval as if requests were independent, looked at as often as one likes.) A level that
    ``most`` requests leave open is decided by its share, with a warning.
    """
    target = question.slo.attainment
    open_levels: list[int] = []
    intervals: list[Interval] = []

    def passes(users: int) -> bool:
        def decided(met: NDArray[np.bool_]) -> bool:
            low, high = wilson(int(met.sum()), len(met))
            return len(met) >= least and (low >= target or high < target)

        met = _first_met(prober, question.slo, users, _WARM_UP + most, lambda met: decided(met[_WARM_UP:]))[_WARM_UP:]
        intervals.append(Interval(users, *wilson(int(met.sum()), len(met))))
        if not decided(met):
            open_levels.append(users)
        return float(met.mean()) >= target

    users = _double_and_bisect(passes, question.max_users)
    notes = tuple(f"{level} users: unresolved, decided by its share" for level in open_levels)
    return Answer(users, intervals=tuple(intervals), notes=notes)


def isotonic_bootstrap(
    prober: VirtualProber, question: Question, *, requests: int = 100, resamples: int = 200
) -> Answer:
    """Doubling, then bisection for the levels; then a falling fit through all of them and a bootstrap interval.

    The fit is isotonic regression (Barlow, Bartholomew, Bremner, Brunk 1972) on the levels' shares; the capacity is
    where its interpolation crosses the target; the bootstrap draws the requests of each level anew, as independent.
    """
    shares: dict[int, float] = {}

    def passes(users: int) -> bool:
        met = _first_met(prober, question.slo, users, _WARM_UP + requests)[_WARM_UP:]
        shares[users] = float(met.mean())
        return shares[users] >= question.slo.attainment

    _double_and_bisect(passes, question.max_users)
    levels = np.array(sorted(shares))
    values = np.array([shares[level] for level in levels.tolist()])
    rng = np.random.default_rng(0)
    drawn = rng.binomial(requests, values, (resamples, len(levels))) / requests
    crossings = np.array([_crossing(levels, row, question.slo.attainment) for row in drawn])
    low, high = np.quantile(crossings, [0.025, 0.975])
    return Answer(_crossing(levels, values, question.slo.attainment), bracket=(int(low), math.ceil(high)))


RULES: dict[str, Rule] = {
    "search": ours,
    "bisect-n20": partial(bisect_points, requests=20, warm_up=0),
    "bisect-n100": partial(bisect_points, requests=100, warm_up=_WARM_UP),
    "bisect-n300": partial(bisect_points, requests=300, warm_up=_WARM_UP),
    "isotonic-bootstrap": isotonic_bootstrap,
    "wilson-goodput": wilson_goodput,
}


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's two-sided 95 % interval for a share (JASA 22, 1927); (0, 1) without trials."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return middle - half, middle + half


def falling_fit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-increasing sequence nearest to ``values`` in least squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] < mean:
            earlier, count = blocks.pop()
            mean, size = (earlier * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    return np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])


def _crossing(levels: NDArray[Any], values: NDArray[np.float64], target: float) -> int:
    """The largest whole number of users at which the interpolated falling fit reaches the target; 0 for none."""
    fit = falling_fit(values)
    holds = np.flatnonzero(fit >= target)
    if not holds.size:
        return 0
    last = int(holds[-1])
    if last == len(levels) - 1:
        return int(levels[last])
    ahead = (fit[last] - target) / (fit[last] - fit[last + 1])
    return int(levels[last] + ahead * (levels[last + 1] - levels[last]))


def _double_and_bisect(passes: Callable[[int], bool], max_users: int) -> int:
    low, high = 0, 1
    while passes(high):
        low = high
        if high == max_users:
            return low
        high = min(2 * high, max_users)
    while high - low > 1:
        middle = (low + high) // 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return low


def _first_met(
    prober: VirtualProber,
    slo: Slo,
    users: int,
    count: int,
    stop: Callable[[NDArray[np.bool_]], bool] | None = None,
) -> NDArray[np.bool_]:
    """Which of the first ``count`` requests to finish met the SLO, fewer where ``stop`` said that it was enough."""
    taken = np.zeros(0, dtype=np.bool_)

    def go_on(look: Look) -> bool:
        nonlocal taken
        requests = look.requests
        ended = np.argsort(requests.start_s + np.where(requests.ok, requests.e2e_s, 0.0), kind="stable")
        taken = meets(requests, slo)[ended][:count]
        return len(taken) < count and not (stop is not None and stop(taken))

    prober(users, go_on, _FOREVER)
    return taken
