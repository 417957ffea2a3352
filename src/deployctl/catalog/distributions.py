"""Distributions of lengths and times, as catalogue and scenario files write them: pure, seeded from outside."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["lognormal", "exponential", "uniform", "constant", "empirical"]

# The keys that each kind needs, and those that it may have besides ``min`` and ``max`` (which clip).
_NEEDS: dict[str, tuple[str, ...]] = {
    "lognormal": ("mean", "cv"),
    "exponential": ("mean",),
    "uniform": ("min", "max"),
    "constant": ("mean",),
    "empirical": ("values",),
}
_PARAMETERS = ("mean", "cv", "values")


class Dist(BaseModel):
    """One distribution of a non-negative quantity (tokens or seconds).

    ``lognormal`` by mean and coefficient of variation, ``exponential`` by mean, ``uniform`` between min and max,
    ``constant`` by mean (or ``value``), ``empirical`` drawn evenly from values. ``min`` and ``max`` clip every kind.
    Raises pydantic's ValidationError for a missing, surplus, negative or infinite key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dist: Kind
    mean: float | None = Field(default=None, ge=0)
    cv: float | None = Field(default=None, ge=0)
    min: float | None = Field(default=None, ge=0)
    max: float | None = Field(default=None, ge=0)
    values: tuple[float, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_value(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("dist") == "constant" and "value" in data and "mean" not in data:
            return {**{key: item for key, item in data.items() if key != "value"}, "mean": data["value"]}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        needs = _NEEDS[self.dist]
        missing = [key for key in needs if getattr(self, key) is None]
        if missing:
            raise ValueError(f"{self.dist} needs {' and '.join(missing)}")
        surplus = [key for key in _PARAMETERS if key not in needs and getattr(self, key) is not None]
        if surplus:
            raise ValueError(f"{self.dist} has no {' nor '.join(surplus)}")
        if self.values is not None and (not self.values or any(value < 0 for value in self.values)):
            raise ValueError("values must be a non-empty list of numbers >= 0")
        if self.dist in ("lognormal", "exponential") and self.mean == 0:
            raise ValueError(f"{self.dist} needs a mean above 0 (write constant for 0)")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self

    @property
    def average(self) -> float:
        """The mean before clipping, in the quantity's own unit."""
        if self.dist == "uniform":
            assert self.min is not None
            assert self.max is not None
            return (self.min + self.max) / 2
        if self.dist == "empirical":
            assert self.values is not None
            return math.fsum(self.values) / len(self.values)
        assert self.mean is not None
        return self.mean

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` independent values (float64, shape ``(n,)``), clipped to min and max."""
        if self.dist == "constant":
            drawn = np.full(n, self.average)
        elif self.dist == "exponential":
            drawn = rng.exponential(self.average, n)
        elif self.dist == "uniform":
            assert self.min is not None
            assert self.max is not None
            return rng.uniform(self.min, self.max, n)
        elif self.dist == "empirical":
            drawn = rng.choice(np.asarray(self.values, dtype=np.float64), n)
        else:
            mu, sigma = self._log_parameters()
            drawn = rng.lognormal(mu, sigma, n)
        if self.min is not None or self.max is not None:
            drawn = np.clip(drawn, self.min, self.max)
        return drawn

    def quantile(self, p: float) -> float:
        """Return the ``p`` quantile (0 <= p <= 1); at p = 1 an unbounded kind gives ``max``, or infinity."""
        if not 0 <= p <= 1:
            raise ValueError(f"a probability is between 0 and 1, not {p!r}")
        if self.dist == "uniform":
            assert self.min is not None
            assert self.max is not None
            return self.min + p * (self.max - self.min)
        if self.dist == "constant":
            value = self.average
        elif self.dist == "exponential":
            value = math.inf if p == 1 else -self.average * math.log1p(-p)
        elif self.dist == "empirical":
            assert self.values is not None
            ordered = sorted(self.values)
            value = ordered[max(0, math.ceil(p * len(ordered)) - 1)]
        elif p in (0, 1):
            value = 0.0 if p == 0 else math.inf
        else:
            mu, sigma = self._log_parameters()
            value = math.exp(mu + sigma * NormalDist().inv_cdf(p))
        return min(max(value, self.min or 0.0), math.inf if self.max is None else self.max)

    def _log_parameters(self) -> tuple[float, float]:
        """Mean and deviation of the logarithm: sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2."""
        assert self.cv is not None
        variance = math.log1p(self.cv**2)
        return math.log(self.average) - variance / 2, math.sqrt(variance)
