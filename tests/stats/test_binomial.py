import pytest
from scipy.stats import binomtest

from deployctl.stats.binomial import clopper_pearson, clopper_pearson_lower, clopper_pearson_upper


@pytest.mark.parametrize(("hits", "total"), [(0, 10), (3, 10), (10, 10), (95, 100), (1, 1), (0, 1)])
def test_the_two_sided_interval_equals_scipys_exact_one(hits, total):
    exact = binomtest(hits, total).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, total, 0.95) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_with_no_failure_the_bound_is_the_rule_of_three_made_exact():
    # No failure in n trials: the lower bound p solves p^n = 0.05.
    assert clopper_pearson_lower(59, 59, 0.95) == pytest.approx(0.05 ** (1 / 59))
    assert clopper_pearson_lower(58, 58, 0.95) < 0.95 < clopper_pearson_lower(59, 59, 0.95)
    assert clopper_pearson_lower(29, 29, 0.95) > 0.90 > clopper_pearson_lower(28, 28, 0.95)


def test_nothing_tried_proves_nothing():
    assert clopper_pearson(0, 0) == (0.0, 1.0)


def test_upper_and_lower_bounds_mirror_each_other():
    assert clopper_pearson_upper(7, 20, 0.9) == pytest.approx(1 - clopper_pearson_lower(13, 20, 0.9))
