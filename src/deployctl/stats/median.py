"""Bounds on a median that assume no law: order statistics and the binomial."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import bdtr


def median_bounds(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return (lower, upper): each is a one-sided bound on the median at ``confidence``; infinite for too few values.

    For independent values of any law: the k-th smallest of n is a lower bound with confidence 1 - P(Bin(n, 1/2) < k)
    (Thompson 1936; David and Nagaraja, "Order Statistics", 7.1). Infinite values are allowed (a failed request).
    """
    ordered = sorted(values)
    count = len(ordered)
    rank = 0
    while rank < count and bdtr(rank, count, 0.5) <= 1.0 - confidence:
        rank += 1
    if rank == 0:
        return -math.inf, math.inf
    return ordered[rank - 1], ordered[count - rank]
