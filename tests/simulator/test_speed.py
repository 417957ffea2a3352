from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from deployctl.simulator.scenario import Scenario
from deployctl.simulator.speed import SpeedClock

Make = Callable[..., Scenario]


def clock(scenario: Scenario, seed: int = 1) -> SpeedClock:
    return SpeedClock(scenario.server, np.random.default_rng(seed))


def test_without_disturbance_work_is_time(make_scenario: Make) -> None:
    plain = clock(make_scenario())
    assert plain.constant
    assert [plain.to_work(value) for value in (0.0, 0.5, 3e6)] == [0.0, 0.5, 3e6]
    assert plain.to_seconds(3e6) == 3e6


def test_a_steal_window_and_a_stall_take_their_work_away(make_scenario: Make) -> None:
    disturbed = clock(
        make_scenario(steal=[{"from_s": 10, "to_s": 20, "fraction": 0.4}], stalls=[{"at_s": 30, "for_s": 5}])
    )
    assert disturbed.to_work(20) == pytest.approx(16)
    assert disturbed.to_work(33) == pytest.approx(26)
    assert disturbed.to_work(40) == pytest.approx(31)
    assert disturbed.to_seconds(26) == pytest.approx(30)  # what was done before the stall was done by its beginning
    assert disturbed.to_seconds(26.5) == pytest.approx(35.5)


def test_overlapping_steal_windows_multiply(make_scenario: Make) -> None:
    window = {"from_s": 0, "to_s": 10, "fraction": 0.5}
    assert clock(make_scenario(steal=[window, window])).to_work(10) == pytest.approx(2.5)


def test_drift_integrates_its_line_and_stops_at_a_tenth(make_scenario: Make) -> None:
    drifting = clock(make_scenario(drift_per_hour=0.5))
    assert drifting.to_work(3600) == pytest.approx(3600 * 0.75, rel=1e-9)  # ∫ (1 - 0.5 t/3600) dt over one hour
    late = drifting.to_work(9001) - drifting.to_work(9000)  # beyond 6480 s the line is under 0.1
    assert late == pytest.approx(0.1)


def test_seconds_and_work_are_inverse_under_noise_one_by_one_and_as_an_array(make_scenario: Make) -> None:
    noisy = clock(
        make_scenario(speed_noise={"cv": 0.3, "tau_s": 20}, steal=[{"from_s": 1.5, "to_s": 9, "fraction": 0.3}])
    )
    seconds = np.linspace(0.1, 5000.7, 997)
    work = np.array([noisy.to_work(value) for value in seconds])
    assert np.all(np.diff(work) > 0)
    assert noisy.to_seconds_array(work) == pytest.approx(seconds)
    assert [noisy.to_seconds(value) for value in work.tolist()] == pytest.approx(seconds.tolist())


def test_the_noise_has_the_stated_mean_deviation_and_correlation(make_scenario: Make) -> None:
    # exp(X - cv²/2) with X ~ N(0, cv²) has mean 1 and variance exp(cv²) - 1; X's lag-1 correlation is exp(-1/tau).
    cv, tau = 0.3, 5.0
    noisy = clock(make_scenario(speed_noise={"cv": cv, "tau_s": tau}))
    work = np.array([noisy.to_work(float(second)) for second in range(200_001)])
    factors = np.diff(work)
    state = np.log(factors) + cv**2 / 2
    # The effective number of draws is about n·(1-a)/(1+a) with a = exp(-1/tau): 20,000, so s.e. of the mean 0.0021.
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert state.std() == pytest.approx(cv, rel=0.03)
    assert np.corrcoef(state[1:], state[:-1])[0, 1] == pytest.approx(math.exp(-1 / tau), abs=0.01)


def test_the_same_seed_gives_the_same_noise(make_scenario: Make) -> None:
    scenario = make_scenario(speed_noise={"cv": 0.3, "tau_s": 5})
    assert clock(scenario, 7).to_work(3000.5) == clock(scenario, 7).to_work(3000.5)
    assert clock(scenario, 7).to_work(3000.5) != clock(scenario, 8).to_work(3000.5)
