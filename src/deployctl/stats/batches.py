"""Batch means: what a series of dependent outcomes is worth in independent ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def batch_means(series: Floats, size: int) -> BatchMeans:
    """Cut ``series`` into batches of ``size`` consecutive values, the oldest few left out; needs two batches.

    Raises ValueError where fewer than two batches fit.
    """
    count = len(series) // size if size >= 1 else 0
    if count < 2:
        raise ValueError(f"{len(series)} values do not make two batches of {size}")
    used = np.asarray(series[len(series) - count * size :], dtype=np.float64)
    means = used.reshape(count, size).mean(axis=1)
    variance = float(means.var(ddof=1)) / count
    spread = float(used.var())
    inflation = variance * count * size / spread if spread > 0 else 1.0
    return BatchMeans(float(used.mean()), count, size, variance, inflation)


def growth_with_batch_size(series: Floats, size: int, least_batches: int = 8, doubt: float = 0.5) -> float:
    """How much larger the inflation is over long batches than over batches of ``size``: 1 where ``size`` suffices.

    A slow neighbour or a drifting clock correlates outcomes over far longer than a busy period. Batches are doubled
    while at least ``least_batches`` remain; each estimate is lowered by ``doubt`` of its own standard error,
    sqrt(2 / (batches - 1)), before the largest is taken.
    """
    if len(series) // size < 2:
        return 1.0
    base = batch_means(series, size).inflation
    if base <= 0:
        return 1.0
    most, size = 1.0, 2 * size
    while (count := len(series) // size) >= least_batches:
        sure = max(0.0, 1.0 - doubt * math.sqrt(2.0 / (count - 1)))
        most = max(most, sure * batch_means(series, size).inflation / base)
        size *= 2
    return most


def shrunk_inflation(
    misses: Floats,
    size: int,
    prior: float,
    *,
    near_misses: Floats | None = None,
    prior_weight: float = 4.0,
    near_weight: float = 5.0,
) -> float:
    """Variance inflation of the 0/1 series ``misses``, robust where misses are few; never below 1.

    Batch means of a handful of misses say little of how misses cluster, and a spotless series says nothing at all, so
    the estimate is pulled towards that of ``near_misses`` (a parallel 0/1 series of the slowest requests, whose
    clustering is much the same and which are never few), and that one towards ``prior``. A weight counts in batches;
    the misses' own estimate weighs as many batches as held a miss.
    """
    if len(misses) // size < 2:
        return max(1.0, prior)
    near = misses if near_misses is None or near_misses.min() == near_misses.max() else near_misses
    if near.min() == near.max():
        return max(1.0, prior)
    found = batch_means(near, size)
    growth = growth_with_batch_size(near, size)
    expected = (prior_weight * prior + found.batches * found.inflation * growth) / (prior_weight + found.batches)
    own = batch_means(misses, size)
    used = misses[len(misses) - own.batches * size :].reshape(own.batches, size)
    touched = min(int(used.any(axis=1).sum()), own.batches - 1)
    return max(1.0, (near_weight * expected + touched * own.inflation * growth) / (near_weight + touched))


def slowest(margins: Floats, share: float) -> Floats:
    """Mark the slowest ``share`` of a series as 1.0 and the rest as 0.0 (ties with the boundary are marked too)."""
    if len(margins) == 0:
        return np.zeros(0)
    finite = np.where(np.isfinite(margins), margins, np.finfo(np.float64).max)
    edge = np.quantile(finite, 1.0 - share)
    marked = finite >= edge
    if marked.mean() > 2.0 * share:  # half of the series and more lies on the boundary itself
        marked = finite > edge
    return np.asarray(marked, dtype=np.float64)
