import math

import numpy as np
import pytest

from deployctl.stats.drift import trend


def test_a_straight_line_is_found_with_its_change_from_end_to_end():
    found = trend(np.linspace(1.0, 0.9, 24))
    assert found.change == pytest.approx(-0.1)
    assert found.t == -math.inf


def test_the_error_is_that_of_least_squares_where_the_rest_is_white():
    # By hand: y = (0, 0, 1, 1, 0, 0, 1, 1), x = -1/2 … 1/2 in sevenths. Slope Σxy/Σx² = (4/7)/(6/7) = 2/3,
    # residual energy Σ(y - 1/2)² - slope²·Σx² = 2 - 8/21 = 34/21. The residuals' lag-one correlation is then
    # corrected for its bias; with r the corrected one the error is sqrt(34/21/6/(6/7) · (1 + r)/(1 - r)).
    values = np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=float)
    place = np.linspace(-0.5, 0.5, 8)
    rest = values - 0.5 - place * 2 / 3
    lag_one = ((rest[1:] * rest[:-1]).sum() / (34 / 21) + 2 / 8) / (1 - 4 / 8)
    found = trend(values)
    assert found.change == pytest.approx(2 / 3)
    assert found.t == pytest.approx((2 / 3) / math.sqrt(34 / 21 / 6 / (6 / 7) * (1 + lag_one) / (1 - lag_one)))


@pytest.mark.parametrize(("correlation", "most"), [(0.0, 0.002), (0.6, 0.005), (0.98, 0.04)])
def test_noise_that_wanders_by_itself_is_hardly_ever_called_a_trend(correlation, most):
    rng = np.random.default_rng(3)
    series = np.empty((4000, 24))
    series[:, 0] = rng.normal(size=4000)
    for step in range(1, 24):
        series[:, step] = correlation * series[:, step - 1] + math.sqrt(1 - correlation**2) * rng.normal(size=4000)
    false = sum(abs(trend(row).t) > 8.0 for row in series) / 4000
    assert false <= most


def test_too_few_values_are_refused():
    with pytest.raises(ValueError, match="at least 8"):
        trend(np.ones(7))
