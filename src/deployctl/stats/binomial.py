"""Exact bounds on a share from counts; the counts may be effective ones and need not be whole."""

from __future__ import annotations

from scipy.special import betaincinv


def clopper_pearson_lower(hits: float, total: float, confidence: float) -> float:
    """One-sided lower bound on the share of hits (Clopper & Pearson 1934), at ``confidence``; 0 for no trials.

    ``hits`` and ``total`` may be fractional: the effective counts of dependent trials (Korn & Graubard 1998).
    """
    if total <= 0 or hits <= 0:
        return 0.0
    return float(betaincinv(hits, total - hits + 1.0, 1.0 - confidence))


def clopper_pearson_upper(hits: float, total: float, confidence: float) -> float:
    """One-sided upper bound on the share of hits, the mirror of :func:`clopper_pearson_lower`; 1 for no trials."""
    return 1.0 - clopper_pearson_lower(total - hits, total, confidence)


def clopper_pearson(hits: float, total: float, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided interval with equal tails: ``(low, high)``."""
    one_sided = 1.0 - (1.0 - confidence) / 2.0
    return clopper_pearson_lower(hits, total, one_sided), clopper_pearson_upper(hits, total, one_sided)
