"""Whether a series has a trend, when its noise may wander by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Trend:
    """A straight line through a series: ``change`` from its first value to its last, ``t``: change over its error."""

    change: float
    t: float


def trend(values: NDArray[np.float64]) -> Trend:
    """Fit a line to equally spaced ``values`` (at least 8), with an error that honours autocorrelation.

    The error of the least-squares slope is inflated by (1 + r) / (1 - r) as for AR(1) residuals; r is the lag-one
    autocorrelation of the residuals, corrected for its bias of about -(2 + 4 r) / n after a line was taken out
    (Marriott & Pope 1954). Under AR(1) noise without a trend, |t| > 8 in 24 values occurs in less than 0.1 % of the
    series for r up to 0.6, and in about 2 % for r = 0.98 (by simulation). Raises ValueError for fewer values.
    """
    count = len(values)
    if count < 8:
        raise ValueError(f"a trend needs at least 8 values, not {count}")
    place = np.linspace(-0.5, 0.5, count)
    spread = float((place**2).sum())
    slope = float((place * values).sum()) / spread
    rest = values - values.mean() - slope * place
    energy = float((rest**2).sum())
    if energy <= 1e-18 * max(1.0, float((values**2).sum())):
        return Trend(slope, 0.0 if abs(slope) < 1e-9 else math.copysign(math.inf, slope))
    lag_one = float((rest[1:] * rest[:-1]).sum()) / energy
    lag_one = min(max((lag_one + 2.0 / count) / (1.0 - 4.0 / count), 0.0), 0.97)
    error = math.sqrt(energy / (count - 2) / spread * (1.0 + lag_one) / (1.0 - lag_one))
    return Trend(slope, slope / error)
