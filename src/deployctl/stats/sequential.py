"""Tests of a share that may be looked at as often as one likes: likelihood-ratio mixtures (e-processes).

Under the hypothesis "the share is at most p" the likelihood ratio of any larger share against p is a supermartingale
that starts at 1; so is any mixture of them (Robbins 1970; Wald 1945 for one alternative). By Ville's inequality it ever
reaches 1/a with probability at most a, whatever the looks (Howard, Ramdas, McAuliffe & Sekhon 2021). With dependent
outcomes the counts handed in are effective ones (count / variance inflation), and the statement is asymptotic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Alternatives:
    """What to bet on: odds of a miss as multiples of those under the hypothesis, and the weight of each (summing to 1).

    To be chosen before the outcomes that are tested; any choice is sound, a good guess needs fewer of them.
    """

    multiples: tuple[float, ...]
    weights: tuple[float, ...]


BETTER = Alternatives((0.0, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9), (0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05))
"""Any better share; a host far below its capacity misses nothing, so "never" is worth betting on."""

_WORSE = np.array([1.15, 1.35, 1.6, 2.0, 3.0, 5.0, 10.0, 30.0])
_WORSE_WEIGHTS = np.full(8, 1 / 8)


def _log_mixture(
    hits: float, misses: float, share: float, multiples: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    odds = (1.0 - share) / share
    miss = odds * multiples / (1.0 + odds * multiples)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain_hit = np.log((1.0 - miss) / share)
        gain_miss = np.log(miss / (1.0 - share))
        logs = hits * gain_hit + (misses * gain_miss if misses > 0 else 0.0)
    top = float(np.max(logs))
    return top + math.log(float(np.sum(weights * np.exp(logs - top))))


def log_e_above(hits: float, misses: float, share: float, alternatives: Alternatives = BETTER) -> float:
    """Log of the evidence against "the share of hits is at most ``share``", from effective counts."""
    return _log_mixture(hits, misses, share, np.array(alternatives.multiples), np.array(alternatives.weights))


def log_e_below(hits: float, misses: float, share: float) -> float:
    """Log of the evidence against "the share of hits is at least ``share``", from effective counts."""
    return _log_mixture(hits, misses, share, _WORSE, _WORSE_WEIGHTS)


def confidence_sequence(hits: float, misses: float, alpha: float) -> tuple[float, float]:
    """Bounds on the share of hits that hold at all looks at once, each side with error ``alpha`` / 2."""
    need = math.log(2.0 / alpha)
    total = hits + misses
    if total <= 0:
        return 0.0, 1.0
    low = _edge(lambda share: log_e_above(hits, misses, share) >= need, 1e-9, min(hits / total, 1 - 1e-9))
    high = 1.0 - _edge(lambda miss: log_e_below(hits, misses, 1.0 - miss) >= need, 1e-9, min(misses / total, 1 - 1e-9))
    return low, high


def _edge(refuted: Callable[[float], bool], low: float, high: float) -> float:
    """The largest value in [low, high] that is refuted, by bisection (evidence falls as the value nears the data)."""
    if high <= low or not refuted(low):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


_BETS = np.array([0.1, 0.35, 0.9])


def log_e_mean_above(values: NDArray[np.float64], mean: float, least: float, inflation: float) -> float:
    """Log of the evidence against "the values' mean is at most ``mean``", for values that are never below ``least``.

    Betting (Waudby-Smith & Ramdas 2024, Estimating means of bounded random variables by betting): each fixed stake s in
    (0, 1 / (mean - least)) multiplies one's capital by 1 + s (x - mean), which no mean up to ``mean`` lets grow on
    average; a mixture of stakes is an e-process. Dependent values count as 1 / ``inflation`` of an independent one.
    """
    if len(values) == 0:
        return 0.0
    stakes = _BETS / max(mean - least, 1e-9)
    logs = np.log1p(stakes[:, None] * (values - mean)[None, :]).sum(axis=1) / inflation
    top = float(logs.max())
    return top + math.log(float(np.mean(np.exp(logs - top))))


def mix(logs: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Log of the weighted mean of several pieces of evidence for one claim: evidence again, whatever their relation."""
    top = float(np.max(logs))
    return top + math.log(float(np.sum(weights * np.exp(logs - top))))
