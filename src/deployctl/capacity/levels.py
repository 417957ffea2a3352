"""Which level to probe next: the one whose chance of passing is worth most beyond the host time that it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.belief import Posterior
from deployctl.capacity.probe import Floats

_MOST_CANDIDATES = 24
_BRISK = 0.2  # requests/s from which on a host is not slow
_REAL_GAIN = 0.02  # tolerances of shortfall
_NOTHING_SOLD = 4.0  # what it costs to end with nothing certified, in tolerances


@dataclass(frozen=True)
class Aim:
    """What a mode wants: how close to the capacity is close enough, and what a second of host time is worth.

    ``tolerance``: share of the capacity (at least one user) within which the certified number counts as found.
    ``patience_s``: seconds that one tolerance of shortfall is worth; ``longest_s``: the most for one level.
    """

    tolerance: float
    patience_s: float
    longest_s: float


@dataclass(frozen=True)
class Terms:
    """What a trial at each candidate level would need; arrays parallel to the candidates.

    ``need``: log evidence still to be gathered; ``inflation``: of the variance; ``rate``: requests per second;
    ``overhead_s``: warm-up and drain, 0 for the level that is running. ``left``: share of the variance that a control
    variate leaves, with ``left_inflation``; infinite where there is none.
    """

    need: Floats
    inflation: Floats
    rate: Floats
    overhead_s: Floats
    left: float
    left_inflation: float


@dataclass(frozen=True)
class Plan:
    """The candidates and what each is worth: expected gain minus the price of its time, in tolerances of shortfall."""

    levels: NDArray[np.int64]
    gain: Floats
    cost_s: Floats
    price: float  # of a second

    @property
    def worth(self) -> Floats:
        """Gain less the price of the time."""
        return self.gain - self.price * self.cost_s

    def best(self, *, spare: bool) -> int | None:
        """The level that is worth most; None where none is worth its time.

        With time to ``spare`` (it is paid for already) a level need not be worth it: any real gain will do, and the one
        that brings most per second is taken.
        """
        top = int(np.argmax(self.worth))
        if self.worth[top] > 0.0:
            return int(self.levels[top])
        rate = np.where(self.gain > _REAL_GAIN, self.gain / np.maximum(self.cost_s, 1e-9), 0.0)
        top = int(np.argmax(rate))
        return int(self.levels[top]) if spare and rate[top] > 0.0 else None

    def at(self, users: int) -> float:
        """The worth of one candidate; minus infinity where it is none."""
        found = np.flatnonzero(self.levels == users)
        return float(self.worth[found[0]]) if len(found) else -math.inf


def candidates(certified: int, ceiling: int, posterior: Posterior, keep: int | None = None) -> NDArray[np.int64]:
    """Levels worth weighing: above what is certified, below the ceiling, denser where the capacity is believed to be.

    ``keep`` is always among them (the level that is running).
    """
    low, high = certified + 1, ceiling - 1
    if high < low:
        return np.zeros(0, dtype=np.int64)
    if high - low < _MOST_CANDIDATES:
        return np.arange(low, high + 1)
    wide = np.geomspace(low, high, 8)
    near = [posterior.quantile(p) * f for p in (0.05, 0.15, 0.3, 0.5, 0.7) for f in (0.92, 0.96, 1.0)]
    return np.unique(np.clip(np.round(np.array([*wide, *near, keep or low])), low, high).astype(np.int64))


def shortfall(certified: Floats | float, capacity: Floats, tolerance: float, most: float) -> Floats:
    """Loss of selling ``certified`` where ``capacity`` would hold, in tolerances; next to nothing within one.

    ``most``: the search's maximum; a capacity beyond it asks for exactly that.
    """
    below_most = (capacity >= most) & (np.asarray(certified) < most)
    capacity = np.minimum(capacity, most)
    off = np.maximum(capacity - certified, 0.0) / np.maximum(1.0, tolerance * capacity)
    loss = 0.1 * np.minimum(off, 1.0) + np.where(off > 1.0, 0.6, 0.0) + 0.4 * np.clip(off - 1.0, 0.0, 100.0)
    return np.asarray(
        loss
        + np.where(below_most, 0.5, 0.0)
        + np.where(np.asarray(certified) == 0, _NOTHING_SOLD, 0.0) * (capacity > 0),
        dtype=np.float64,
    )


def weigh_levels(
    levels: NDArray[np.int64],
    certified: int,
    posterior: Posterior,
    target: float,
    terms: Terms,
    aim: Aim,
    left_s: float,
    most: int,
) -> Plan:
    """The worth of each level: chance of passing times what passing is worth, less the price of the expected time.

    The time to decide follows Wald (1945): evidence grows on average by the Kullback-Leibler divergence of the
    attainment from the target per effective request, or by what the best bet on the mean brings where a control
    variate leaves less variance than that (``stats.sequential``).
    """
    miss = posterior.miss(levels)
    met = 1.0 - miss
    holds = miss <= 1.0 - target
    growth = _growth(met, miss, target, terms)
    per_second = np.maximum(growth, 1e-12) * terms.rate[None, :]
    to_pass = terms.need[None, :] / per_second + terms.overhead_s[None, :]
    to_give_up = 1.5 / per_second + 10.0 * (terms.inflation / terms.rate)[None, :] + terms.overhead_s[None, :]
    cap = min(aim.longest_s, left_s)
    passes = holds & (to_pass <= cap)
    cost = np.where(passes, to_pass, np.minimum(to_give_up, cap))
    capacity = posterior.n_star[:, None]
    gain = shortfall(float(certified), capacity, aim.tolerance, most) - shortfall(
        levels.astype(np.float64)[None, :], capacity, aim.tolerance, most
    )
    expected_gain = (posterior.weights[:, None] * np.where(passes, gain, 0.0)).sum(axis=0)
    expected_cost = (posterior.weights[:, None] * cost).sum(axis=0)
    # A slow host makes every answer dear; there the last user is worth less of its time.
    pace = min(1.0, float(terms.rate.mean()) / _BRISK)
    price = 1.0 / min(aim.patience_s * (0.2 + 0.8 * pace), max(left_s, 1.0))
    return Plan(levels, expected_gain, expected_cost, price)


def _growth(met: Floats, miss: Floats, target: float, terms: Terms) -> Floats:
    """Log evidence per request: curves (rows) by levels (columns)."""
    plain = (met * np.log(met / target) + miss * np.log(miss / (1.0 - target))) / terms.inflation[None, :]
    if not math.isfinite(terms.left):
        return np.asarray(plain, dtype=np.float64)
    gap = np.abs(met - target)
    second = terms.left * met * miss + gap**2 + 1e-5
    stake = np.minimum(0.9, gap / second)
    return np.asarray(np.maximum(plain, (stake * gap - 0.5 * stake**2 * second) / terms.left_inflation))


def log_need(alpha: float, credit: float) -> float:
    """Log evidence that a level still needs to pass at ``alpha`` given the ``credit`` that it has (log e-value).

    A mixture of alternatives always trails the best of them, by about 0.7.
    """
    return max(0.3, math.log(1.0 / alpha) + 0.7 - credit)
