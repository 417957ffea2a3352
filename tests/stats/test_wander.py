import math

import numpy as np
import pytest

from deployctl.stats.wander import STILL, Wander, wander


def wandering(seconds: int, sd: float, tau_s: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    keep = math.exp(-1 / tau_s)
    values = np.empty(seconds)
    values[0] = rng.normal(0, sd)
    steps = rng.normal(0, sd * math.sqrt(1 - keep**2), seconds)
    for second in range(1, seconds):
        values[second] = keep * values[second - 1] + steps[second]
    return values


def test_a_moment_varies_like_one_value_and_a_long_while_like_its_share():
    found = Wander(sd=0.2, tau_s=60.0)
    assert found.variance_of_mean(0.001) == pytest.approx(0.04, rel=1e-4)
    assert found.variance_of_mean(60_000.0) == pytest.approx(0.04 * 2 * 60 / 60_000, rel=2e-3)
    # x = 1: 2 (1 - (1 - 1/e)) = 2/e
    assert found.variance_of_mean(60.0) == pytest.approx(0.04 * 2 / math.e)


def test_the_variance_of_a_mean_is_what_many_runs_show():
    means = [wandering(300, 0.15, 60.0, seed).mean() for seed in range(3000)]
    assert np.var(means) == pytest.approx(Wander(0.15, 60.0).variance_of_mean(300.0), rel=0.1)


@pytest.mark.parametrize(("tau_s", "block_s"), [(60.0, 40), (60.0, 90), (300.0, 60)])
def test_spread_and_slowness_are_found_in_spite_of_measuring_noise(tau_s, block_s):
    found = []
    for seed in range(60):
        series = wandering(80 * block_s, 0.15, tau_s, seed).reshape(80, block_s).mean(axis=1)
        found.append(wander(series + np.random.default_rng(1000 + seed).normal(0, 0.05, 80), 0.05**2, block_s))
    assert float(np.median([one.sd for one in found])) == pytest.approx(0.15, rel=0.25)
    assert float(np.median([one.tau_s for one in found])) == pytest.approx(tau_s, rel=0.4)


def test_white_noise_is_hardly_ever_called_wandering():
    rng = np.random.default_rng(5)
    called = sum(wander(rng.normal(0, 0.1, 48), 0.01, 30.0) != STILL for _ in range(2000))
    assert called / 2000 < 0.05


def test_too_few_blocks_and_a_constant_say_nothing():
    assert wander(np.arange(11.0), 0.0, 30.0) == STILL
    assert wander(np.ones(30), 0.0, 30.0) == STILL
