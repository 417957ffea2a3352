import numpy as np

from deployctl.stats.warmup import mser5


def test_a_ramp_before_a_flat_stretch_is_cut_off():
    rng = np.random.default_rng(5)
    series = np.concatenate([np.linspace(10, 0, 50), np.zeros(200)]) + 0.1 * rng.normal(size=250)
    assert 40 <= mser5(series) <= 60


def test_a_constant_series_loses_nothing():
    assert mser5(np.ones(100)) == 0


def test_too_short_a_series_is_left_alone():
    assert mser5(np.array([9.0, 1.0, 1.0])) == 0


def test_no_more_than_the_allowed_share_is_cut():
    series = np.concatenate([np.full(90, 10.0), np.zeros(10)])
    assert mser5(series, most=0.25) <= 25
