"""Corrects predicted speeds by what was measured on hosts of the same class."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from deployctl.sizing.speed import Speed

PRIOR_WEIGHT = 1.0
"""How many measurements the uncorrected prediction counts as."""
LEAST_BAND = 1.1
"""Below this no host repeats itself from day to day."""


@dataclass(frozen=True)
class Measured:
    """One record's baseline beside its prediction, in tokens per second of one stream."""

    predicted: float
    measured: float


@dataclass(frozen=True)
class Calibration:
    """A factor on predicted speeds, from ``records`` measurements; ``band`` is how far they scatter around it."""

    factor: float
    band: float
    records: int
    what: str = "this host class"

    def to_dict(self) -> dict[str, object]:
        """Return the block of the JSON document."""
        return {"factor": round(self.factor, 3), "band": round(self.band, 3), "runs": self.records, "on": self.what}

    def apply(self, speed: Speed) -> Speed:
        """Return the corrected prediction."""
        return replace(
            speed,
            prefill_tok_s=speed.prefill_tok_s * self.factor,
            decode_tok_s=speed.decode_tok_s * self.factor,
            decode_full_tok_s=speed.decode_full_tok_s * self.factor,
            band=min(speed.band, self.band),
        )


def calibrate(measurements: Iterable[Measured], prior_band: float, what: str = "this host class") -> Calibration | None:
    """Return the calibration that the measurements of one host class give; None without any.

    The log ratios are shrunk towards 0 as if by one further measurement that agreed with the prediction, and the band
    is two standard errors of a next host around that mean, at least 10 % and never above ``prior_band``.
    """
    ratios = [
        math.log(pair.measured / pair.predicted)
        for pair in measurements
        if 0 < pair.measured < math.inf and 0 < pair.predicted < math.inf
    ]
    if not ratios:
        return None
    count = len(ratios)
    mean = math.fsum(ratios) / (count + PRIOR_WEIGHT)
    prior = math.log(prior_band) / 2  # the band is taken as two standard deviations
    spread = math.fsum((ratio - mean) ** 2 for ratio in ratios) + PRIOR_WEIGHT * prior**2
    deviation = math.sqrt(spread / (count + PRIOR_WEIGHT))
    band = math.exp(2 * deviation * math.sqrt(1 + 1 / (count + PRIOR_WEIGHT)))
    return Calibration(math.exp(mean), min(max(band, LEAST_BAND), prior_band), count, what)
