"""What the search believes of the whole curve "users → attainment": a guide to the next level, never evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.probe import Floats

_COARSE, _FINE = 100, 160  # knees over the whole range, and within a factor of two of the guess
_STEEPNESS = np.geomspace(1.0, 60.0, 12)
_TEMPER = 0.7  # the curve's shape is an assumption: data count a little less than they would if it were true
_CAP = 4000.0  # … and no single level may drown the others


@dataclass(frozen=True)
class Seen:
    """Effective counts of one level."""

    users: int
    hits: float
    misses: float


class Belief:
    """A grid over curves whose odds of a miss grow as (users / knee)^steepness and meet the target at the knee.

    Closed-loop queues near their knee look much like that: the log of the miss share is close to linear in the log of
    the users (``reference``: slope 6). The prior of the knee is log-normal around ``guess``, but for a share ``stray``
    that is spread evenly.
    """

    def __init__(
        self,
        target: float,
        guess: float | None,
        max_users: int,
        *,
        spread: float = 0.7,
        steepness: float = 8.0,
        steepness_spread: float = 0.9,
        stray: float = 0.15,
    ) -> None:
        self._target = target
        low, high = math.log(0.4), math.log(2.0 * max_users + 2.0)
        log_knees = np.linspace(low, high, _COARSE)
        if guess is not None:
            fine = np.linspace(math.log(guess / 2.0), math.log(guess * 2.0), _FINE)
            log_knees = np.unique(np.concatenate([log_knees, fine[(fine > low) & (fine < high)]]))
        density = np.full(log_knees.shape, 1.0 / (high - low))
        if guess is not None:
            around = np.exp(-0.5 * ((log_knees - math.log(guess)) / spread) ** 2) / (spread * math.sqrt(2 * math.pi))
            density = stray * density + (1.0 - stray) * around
        prior = np.log(density * np.gradient(log_knees))
        knee, steep = np.meshgrid(log_knees, _STEEPNESS, indexing="ij")
        self.log_knee: Floats = knee.ravel()
        self.steepness: Floats = steep.ravel()
        towards = -0.5 * ((np.log(self.steepness) - math.log(steepness)) / steepness_spread) ** 2
        self._log_prior: Floats = np.repeat(prior, len(_STEEPNESS)) + towards

    def given(self, seen: Iterable[Seen]) -> Posterior:
        """Weigh the curves by what the probes have seen."""
        logs = self._log_prior.copy()
        for level in seen:
            total = level.hits + level.misses
            if total <= 0:
                continue
            scale = _TEMPER * min(1.0, _CAP / total)
            miss = self.miss(self.log_knee, self.steepness, np.array([float(level.users)]))[:, 0]
            logs += scale * (level.misses * np.log(miss) + level.hits * np.log1p(-miss))
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        keep = weights > 1e-5
        return Posterior(self, self.log_knee[keep], self.steepness[keep], weights[keep] / weights[keep].sum())

    def miss(self, log_knee: Floats, steepness: Floats, users: Floats) -> Floats:
        """Miss share of curves (rows) at levels (columns)."""
        odds = math.log((1.0 - self._target) / self._target)
        logit = odds + steepness[:, None] * (np.log(users)[None, :] - log_knee[:, None])
        return np.clip(1.0 / (1.0 + np.exp(-np.clip(logit, -40, 40))), 1e-9, 1 - 1e-9)


@dataclass(frozen=True)
class Posterior:
    """Curves and their weights. ``n_star`` is parallel: each curve's largest whole number of users that holds."""

    belief: Belief
    log_knee: Floats
    steepness: Floats
    weights: Floats

    @property
    def n_star(self) -> Floats:
        """Capacity of each curve, in users."""
        return np.floor(np.exp(self.log_knee) + 1e-9)

    def miss(self, users: NDArray[np.int64]) -> Floats:
        """Miss share of each curve (rows) at each level (columns)."""
        return self.belief.miss(self.log_knee, self.steepness, users.astype(np.float64))

    def quantile(self, probability: float) -> float:
        """Quantile of the capacity."""
        values = self.n_star
        order = np.argsort(values)
        summed = np.cumsum(self.weights[order])
        return float(values[order][min(int(np.searchsorted(summed, probability)), len(values) - 1)])
