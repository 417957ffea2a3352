"""Bounds on a median against the published ranks and by playing them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deployctl.stats.median import median_bounds


@pytest.mark.parametrize(
    # Two-sided 95 % intervals of the median are one-sided bounds at 97.5 %: Conover, "Practical Nonparametric
    # Statistics", table A3 and everybody's table of ranks: n = 6: 1st; 9: 2nd; 12: 3rd; 15: 4th; 20: 6th; 25: 8th.
    ("count", "rank"),
    [(5, None), (6, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8)],
)
def test_the_ranks_are_those_of_the_tables(count: int, rank: int | None) -> None:
    low, high = median_bounds(list(range(1, count + 1)), 0.975)
    assert low == (-math.inf if rank is None else rank)
    assert high == (math.inf if rank is None else count + 1 - rank)


def test_the_bounds_hold_for_a_skewed_law() -> None:
    rng = np.random.default_rng(1)
    draws = rng.lognormal(0, 1.5, (4000, 16))  # median 1
    low = np.mean([median_bounds(list(row))[0] <= 1 for row in draws])
    high = np.mean([median_bounds(list(row))[1] >= 1 for row in draws])
    assert low >= 0.945
    assert high >= 0.945


def test_a_failed_request_is_infinite_and_counts() -> None:
    assert median_bounds([1.0] * 3 + [math.inf] * 7)[1] == math.inf
    assert median_bounds([]) == (-math.inf, math.inf)
