import numpy as np
import pytest

from deployctl.stats.batches import batch_means, growth_with_batch_size, shrunk_inflation, slowest


def test_batch_means_of_a_hand_worked_series():
    # Batches (1, 1), (1, 0), (0, 0) have means 1, 0.5, 0: variance 0.25 among them, 0.25 / 3 of their mean.
    found = batch_means(np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), 2)
    assert (found.mean, found.batches, found.size) == (0.5, 3, 2)
    assert found.variance_of_mean == pytest.approx(0.25 / 3)
    assert found.inflation == pytest.approx((0.25 / 3) / (0.25 / 6))


def test_inflation_of_an_autoregression_is_the_textbook_one():
    # For an AR(1) with coefficient r the variance of the mean is (1 + r) / (1 - r) times that of independent values.
    rng = np.random.default_rng(7)
    steps = rng.normal(size=400_000)
    series = np.empty_like(steps)
    state = 0.0
    for index, step in enumerate(steps):
        state = 0.6 * state + step
        series[index] = state
    assert batch_means(series, 200).inflation == pytest.approx(1.6 / 0.4, rel=0.1)


def test_independent_outcomes_are_not_inflated():
    series = (np.random.default_rng(3).random(100_000) < 0.95).astype(float)
    assert batch_means(series, 50).inflation == pytest.approx(1.0, abs=0.1)


def test_a_spotless_series_keeps_the_prior_because_it_says_nothing_about_clustering():
    assert shrunk_inflation(np.zeros(200), 10, prior=3.0) == 3.0


def test_inflation_is_never_below_one():
    alternating = np.tile([1.0, 0.0], 500)
    assert shrunk_inflation(alternating, 10, prior=1.0) == 1.0


def test_less_than_two_batches_are_refused():
    with pytest.raises(ValueError, match="two batches"):
        batch_means(np.ones(5), 3)


def test_longer_batches_show_what_short_ones_hide():
    # A slow wave of period 2,000: batches of 10 see almost nothing of it, batches of hundreds do.
    wave = (np.sin(np.arange(16_000) * 2 * np.pi / 2000) > 0).astype(float)
    noise = np.random.default_rng(2).random(16_000) < 0.5
    assert growth_with_batch_size(np.where(noise, wave, 1 - wave * 0), 10) > 5
    assert growth_with_batch_size((np.random.default_rng(4).random(16_000) < 0.1).astype(float), 10) < 1.5


def test_the_slowest_share_is_marked_and_failures_are_the_slowest():
    assert slowest(np.array([1.0, np.inf, 2.0, 3.0, 0.5, 0.1, 0.2, 0.3, 0.4, 0.6]), 0.2).tolist() == [
        0, 1, 0, 1, 0, 0, 0, 0, 0, 0,
    ]  # fmt: skip


def test_near_misses_tell_how_misses_cluster_before_there_are_any():
    clustered = np.zeros(2000)
    clustered[500:600] = clustered[1200:1300] = 1.0
    apart = np.zeros(2000)
    apart[::10] = 1.0
    none = np.zeros(2000)
    assert shrunk_inflation(none, 20, 3.0, near_misses=clustered) > 2 * shrunk_inflation(
        none, 20, 3.0, near_misses=apart
    )
