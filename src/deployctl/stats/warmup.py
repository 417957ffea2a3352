"""Where a series becomes steady: the MSER-5 truncation rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mser5(series: NDArray[np.float64], most: float = 0.5, worth: float = 0.0) -> int:
    """Number of leading values to discard, by MSER-5 (White, Cobb & Spratt 2000, Winter Simulation Conference).

    Over batches of five, picks the cut d that minimizes the squared standard error of what remains,
    sum((y - mean)^2) / (n - d)^2, among cuts of at most the share ``most`` of the series. A cut that lowers the score
    by less than the share ``worth`` is not made (the minimum is noisy on a steady series). Values must be finite.
    """
    count = len(series) // 5
    if count < 4:
        return 0
    means = np.asarray(series[: count * 5], dtype=np.float64).reshape(count, 5).mean(axis=1)
    left = np.arange(count, 0, -1)
    tail = np.cumsum(means[::-1])[::-1]
    tail_squares = np.cumsum(means[::-1] ** 2)[::-1]
    score = (tail_squares - tail**2 / left) / left.astype(np.float64) ** 2
    allowed = max(1, int(count * most))
    cut = int(np.argmin(score[:allowed]))
    return 5 * cut if score[cut] < (1.0 - worth) * score[0] else 0
