"""Quantiles that equal NumPy's and survive infinite latencies (a failed request never leaves a percentile)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike


def quantile(values: ArrayLike, probability: float) -> float:
    """The ``probability`` quantile by linear interpolation (Hyndman & Fan 1996, type 7: NumPy's default).

    Differs from ``numpy.quantile`` only where that yields NaN: between two infinite values the answer is infinite.
    NaN for no values. Raises ValueError for a probability outside [0, 1].
    """
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"not a probability: {probability}")
    data = np.sort(np.asarray(values, dtype=np.float64))
    if data.size == 0:
        return float("nan")
    position = (data.size - 1) * probability
    below = int(position)
    share = position - below
    low = float(data[below])
    if share == 0.0:
        return low
    high = float(data[below + 1])
    if low == high:
        return low
    if np.isinf(high):
        return high
    # The same two branches as NumPy's _lerp: exact at both ends and monotone.
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def percentiles(values: ArrayLike, which: Iterable[int] = (50, 95, 99)) -> dict[str, float]:
    """Named percentiles, ``{"p50": …, "p95": …, "p99": …}``, in the unit of ``values``."""
    data = np.sort(np.asarray(values, dtype=np.float64))
    return {f"p{p}": quantile(data, p / 100) for p in which}
