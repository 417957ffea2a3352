"""Batch means: what a series of dependent outcomes is worth in independent ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BatchMeans:
    """Non-overlapping batch means of one series (Schmeiser 1982; Law & Kelton, section 9.5).

    ``variance_of_mean`` estimates Var(mean); ``inflation`` is its ratio to the variance that independent outcomes with
    the same spread would give (1 = independent); ``batches`` - 1 are the degrees of freedom.
    """

    mean: float
    batches: int
    size: int
    variance_of_mean: float
    inflation: float


def batch_means(series: NDArray[np.float64], size: int) -> BatchMeans:
    """Cut ``series`` into batches of ``size`` consecutive values, the oldest few left out; needs two batches.

    Raises ValueError where fewer than two batches fit.
    """
    count = len(series) // size
    if size < 1 or count < 2:
        raise ValueError(f"{len(series)} values do not make two batches of {size}")
    used = np.asarray(series[len(series) - count * size :], dtype=np.float64)
    means = used.reshape(count, size).mean(axis=1)
    variance = float(means.var(ddof=1)) / count
    spread = float(used.var())
    inflation = variance * count * size / spread if spread > 0 else 1.0
    return BatchMeans(float(used.mean()), count, size, variance, inflation)


def shrunk_inflation(series: NDArray[np.float64], size: int, prior: float, prior_weight: float = 8.0) -> float:
    """Variance inflation of a 0/1 series: the batch-means estimate pulled towards ``prior``, never below 1.

    The estimate's weight is the number of its batches that saw a miss (a batch without one says nothing on how misses
    cluster), so that a spotless short series, whose batch means have no variance at all, keeps the prior.
    """
    if len(series) // size < 2:
        return max(1.0, prior)
    found = batch_means(series, size)
    count = found.batches
    used = series[len(series) - count * size :].reshape(count, size)
    touched = min(int((used < 1).any(axis=1).sum()), count - 1)
    return max(1.0, (prior_weight * prior + touched * found.inflation) / (prior_weight + touched))
