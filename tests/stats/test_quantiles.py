import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.stats.quantiles import percentiles, quantile

values = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60)


@given(values, st.floats(0, 1))
def test_quantiles_equal_numpys(data, probability):
    assert quantile(data, probability) == pytest.approx(np.quantile(data, probability), rel=1e-12, abs=1e-9)


def test_a_percentile_among_failures_is_infinite_and_not_a_number_that_hides_them():
    data = [1.0, 2.0, np.inf, np.inf]
    assert quantile(data, 0.5) == np.inf  # halfway between 2 and infinity
    assert quantile(data, 0.9) == np.inf  # between two infinities, where numpy has no answer
    assert quantile(data, 0.0) == 1.0


def test_percentiles_are_named():
    assert percentiles(np.arange(101)) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


def test_no_values_have_no_quantile():
    assert np.isnan(quantile([], 0.5))


def test_a_probability_outside_the_unit_interval_is_refused():
    with pytest.raises(ValueError, match="not a probability"):
        quantile([1.0], 1.5)
