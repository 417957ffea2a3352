"""How far a process wanders by itself, and what that leaves uncertain of a mean over a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST = 12  # blocks, below which nothing is said
_STEADIEST = 0.97  # of the correlation of neighbouring blocks
_UNSEEN = 0.6  # share of the variance that a short watch is assumed to miss, at most
_SURE = 2.0  # |lag-one correlation| · sqrt(blocks) from which on the blocks wander


@dataclass(frozen=True)
class Wander:
    """An AR(1) process: standard deviation ``sd`` (in the units of the values), correlation time ``tau_s`` seconds."""

    sd: float = 0.0
    tau_s: float = 1.0

    def variance_of_mean(self, lasted_s: float) -> float:
        """Variance of the process's mean over ``lasted_s`` seconds: sd² · 2 (1 - (1 - e^-x) / x) / x, x = lasted / tau.

        (The integral of e^(-|s - t| / tau) over the square; Priestley 1981, section 5.3.)
        """
        x = max(lasted_s, 1e-9) / self.tau_s
        return self.sd**2 * 2.0 * (1.0 - -math.expm1(-x) / x) / x


STILL = Wander()


def wander(values: NDArray[np.float64], noise: float, block_s: float) -> Wander:
    """Fit an AR(1) to the means of consecutive blocks of ``block_s`` seconds whose own measuring variance is ``noise``.

    The lag-one autocovariance is free of the noise. The correlation is corrected for its bias, -(1 + 3 r) / n (Kendall
    1954), and for what averaging over a block does to it; the variance for that too, and for what the mean of a short
    watch takes with it. ``STILL`` where the blocks are too few, or where neighbours are not alike beyond chance.
    """
    count = len(values)
    if count < _LEAST:
        return STILL
    rest = values - values.mean()
    total = float((rest**2).mean())
    if total <= 0:
        return STILL
    together = float((rest[1:] * rest[:-1]).mean())
    if together / total * math.sqrt(count) < _SURE:
        return STILL
    own = max(total - noise, together)
    raw = together / own
    correlation = min(raw + (1.0 + 3.0 * raw) / count, _STEADIEST)
    unseen = min((1.0 + correlation) / (1.0 - correlation) / count, _UNSEEN)
    x = _blocks_per_tau(correlation)
    spread = own * x**2 / (2.0 * (x + math.expm1(-x)))
    return Wander(math.sqrt(spread / (1.0 - unseen)), block_s / x)


def _blocks_per_tau(correlation: float) -> float:
    """The x = block / tau at which neighbouring means of an AR(1) correlate so: (1 - e^-x)² / (2 (x - 1 + e^-x))."""
    low, high = 1e-3, 50.0
    for _ in range(60):
        x = (low + high) / 2.0
        low, high = (x, high) if math.expm1(-x) ** 2 / (2.0 * (x + math.expm1(-x))) > correlation else (low, x)
    return low
