import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.sizing.calibration import Measured, calibrate
from deployctl.sizing.speed import Speed

ratios = st.lists(st.floats(0.4, 2.5), min_size=1, max_size=30)


def measured(*values: float) -> list[Measured]:
    return [Measured(10, 10 * value) for value in values]


def test_without_measurements_there_is_no_correction() -> None:
    assert calibrate([], 1.6) is None
    assert calibrate([Measured(10, 0), Measured(0, 10)], 1.6) is None


def test_one_measurement_moves_the_prediction_half_way_in_logarithms() -> None:
    # One measured ratio of 1/4 and the prior's one vote for 1: exp(ln(1/4) / 2) = 1/2
    found = calibrate(measured(0.25), 1.6)
    assert found is not None
    assert found.factor == pytest.approx(0.5)
    assert found.records == 1


def test_many_equal_measurements_are_believed_and_narrow_the_band() -> None:
    found = calibrate(measured(*[0.8] * 99), 1.6)
    assert found is not None
    assert found.factor == pytest.approx(math.exp(math.log(0.8) * 0.99))
    assert found.band == pytest.approx(1.1)


@given(ratios)
def test_the_factor_lies_between_the_prediction_and_the_extremes(values: list[float]) -> None:
    found = calibrate(measured(*values), 1.6)
    assert found is not None
    assert min(1, *values) - 1e-9 <= found.factor <= max(1, *values) + 1e-9
    assert 1.1 <= found.band <= 1.6


def test_a_correction_scales_every_speed() -> None:
    found = calibrate(measured(0.25), 1.6)
    assert found is not None
    corrected = found.apply(Speed(100, 20, 8, 1.6))
    assert (corrected.prefill_tok_s, corrected.decode_tok_s, corrected.decode_full_tok_s) == pytest.approx((50, 10, 4))
