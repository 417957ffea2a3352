"""Distributions of token counts and think times: quantiles, samples and means of what a workload asks for."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from deployctl.catalog.base import Entry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_STANDARD_NORMAL = NormalDist()

NEEDS: dict[str, tuple[str, ...]] = {
    "lognormal": ("mean", "cv"),
    "exponential": ("mean",),
    "uniform": ("min", "max"),
    "constant": ("mean",),
    "empirical": ("values",),
}


class Dist(Entry):
    """A distribution of a non-negative quantity; the unit is its user's (tokens, seconds, turns).

    ``mean`` and ``cv`` (standard deviation over mean) describe the law *before* ``min`` and ``max`` clamp it: a draw
    outside is moved to the bound, not drawn again. `expected` is the mean after clamping. For ``uniform`` and
    ``empirical`` the mean is derived. ``constant`` is its ``mean``.
    """

    dist: Literal["lognormal", "exponential", "uniform", "constant", "empirical"]
    mean: float = Field(default=math.nan, ge=0)
    cv: float | None = Field(default=None, ge=0, le=10)
    min: float | None = Field(default=None, ge=0)
    max: float | None = Field(default=None, ge=0)
    values: tuple[float, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("dist") not in NEEDS:
            return data
        kind = data["dist"]
        missing = [key for key in NEEDS[kind] if data.get(key) is None]
        if missing:
            raise ValueError(f"a {kind} distribution needs {' and '.join(missing)}")
        allowed = {"dist", "min", "max", *NEEDS[kind]}
        if kind in {"uniform", "empirical"}:
            allowed.add("mean")  # derived; accepted again when a dumped entry is read back
        surplus = sorted(
            key for key in data if key in cls.model_fields and key not in allowed and data[key] is not None
        )
        if surplus:
            raise ValueError(f"a {kind} distribution takes no {' or '.join(surplus)}")
        try:
            if kind == "uniform":
                return {**data, "mean": (float(data["min"]) + float(data["max"])) / 2}
            if kind == "empirical":
                return {**data, "mean": math.fsum(map(float, data["values"])) / len(data["values"])}
        except (TypeError, ValueError, ZeroDivisionError):
            return data  # the field's own check says what is wrong
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Dist:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        if self.dist == "lognormal" and self.mean <= 0:
            raise ValueError("the mean of a lognormal distribution must be above 0")
        if any(value < 0 for value in self.values or ()):
            raise ValueError("values must not be negative")
        return self

    def quantile(self, p: float) -> float:
        """Return the ``p``-quantile (0 <= p <= 1) after clamping; infinite only for an unbounded law at p = 1."""
        if not 0 <= p <= 1:
            raise ValueError(f"a quantile is asked for in [0, 1], not {p}")
        return self._clamp(self._raw_quantile(p))

    def expected(self) -> float:
        """Return the mean of the clamped distribution: E[min(max(X, a), b)], exactly.

        With F the distribution function, E = a + integral of (1 - F) from a to b; the closed forms are the limited
        expected values of the laws (Klugman, Panjer, Willmot: Loss Models, appendix A).
        """
        low = self.min or 0.0
        high = math.inf if self.max is None else self.max
        if self.dist == "empirical":
            values = self.values or ()
            return math.fsum(self._clamp(value) for value in values) / len(values)
        if self.dist in {"constant", "uniform"}:
            return self._clamp(self.mean)
        return low + self._limited(high) - self._limited(low)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """Draw ``n`` values, shape ``(n,)``, in the unit of the distribution."""
        import numpy as np

        drawn: NDArray[np.float64]
        if self.dist == "lognormal":
            mu, sigma = self._log_parameters()
            drawn = rng.lognormal(mu, sigma, n)
        elif self.dist == "exponential":
            drawn = rng.exponential(self.mean, n)
        elif self.dist == "uniform":
            drawn = rng.uniform(self.min or 0.0, self.max or 0.0, n)
        elif self.dist == "empirical":
            drawn = rng.choice(np.asarray(self.values, dtype=np.float64), n)
        else:
            drawn = np.full(n, self.mean, dtype=np.float64)
        return np.clip(drawn, self.min or 0.0, math.inf if self.max is None else self.max)

    def sample_counts(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """Draw ``n`` whole numbers of at least 1 (tokens, turns), shape ``(n,)``."""
        import numpy as np

        return np.maximum(np.rint(self.sample(rng, n)), 1).astype(np.int64)

    def scaled(self, factor: float) -> Dist:
        """Return the law of ``factor`` (above 0) times the quantity, bounds included."""
        if factor <= 0:
            raise ValueError(f"a distribution is scaled by a factor above 0, not {factor:g}")
        told = self.model_dump(exclude_none=True, exclude={"mean"} if self.dist in {"uniform", "empirical"} else None)
        for key in ("mean", "min", "max"):
            if key in told:
                told[key] *= factor
        if self.values is not None:
            told["values"] = tuple(value * factor for value in self.values)
        return Dist.model_validate(told)

    def _clamp(self, value: float) -> float:
        bounded = max(value, self.min or 0.0)
        return bounded if self.max is None else min(bounded, self.max)

    def _log_parameters(self) -> tuple[float, float]:
        variance = math.log1p((self.cv or 0.0) ** 2)
        return math.log(self.mean) - variance / 2, math.sqrt(variance)

    def _raw_quantile(self, p: float) -> float:
        if self.dist == "lognormal":
            mu, sigma = self._log_parameters()
            if sigma == 0:
                return self.mean
            if p in {0.0, 1.0}:
                return 0.0 if p == 0 else math.inf
            return math.exp(mu + sigma * _STANDARD_NORMAL.inv_cdf(p))
        if self.dist == "exponential":
            return math.inf if p == 1 and self.mean > 0 else -self.mean * math.log1p(-p) if p < 1 else 0.0
        if self.dist == "uniform":
            low, high = self.min or 0.0, self.max or 0.0
            return low + p * (high - low)
        if self.dist == "empirical":
            ordered = sorted(self.values or ())
            return ordered[min(len(ordered) - 1, max(0, math.ceil(p * len(ordered)) - 1))]
        return self.mean

    def _limited(self, bound: float) -> float:
        """Return E[min(X, bound)] of the law before clamping."""
        if bound <= 0 or self.mean == 0:
            return 0.0
        if math.isinf(bound):
            return self.mean
        if self.dist == "exponential":
            return -self.mean * math.expm1(-bound / self.mean)
        mu, sigma = self._log_parameters()
        if sigma == 0:
            return min(self.mean, bound)
        z = (math.log(bound) - mu) / sigma
        return self.mean * _STANDARD_NORMAL.cdf(z - sigma) + bound * (1 - _STANDARD_NORMAL.cdf(z))


def _from_number(value: Any) -> Any:
    """Let a bare number stand for a constant."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"dist": "constant", "mean": value}
    return value


Amount = Annotated[Dist, BeforeValidator(_from_number)]
"""A `Dist` that may be written as a bare number."""
