"""The compiled loop takes the very steps of the plain one, on every kind of scenario there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deployctl.simulator.scenario import Scenario, load_folder
from deployctl.simulator.speed import SpeedClock
from deployctl.simulator.virtual import ClosedLoop, closed_loop

pytest.importorskip("numba")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ALL = (*load_folder(BENCHMARKS / "scenarios"), *load_folder(BENCHMARKS / "disturbed"))


def played(scenario: Scenario, users: int, *, compiled: bool) -> list[ClosedLoop]:
    """Two probes one after the other on one host, looked at now and then; so many users that nobody queues for ever."""
    clock = SpeedClock(scenario.server, np.random.default_rng(5))
    loops, began_s = [], 0.0
    for number in range(2):
        seed = np.random.SeedSequence([7, number])
        loop = closed_loop(scenario, users, seed, clock, began_s, compiled=compiled)
        for until_s in (0.5, 30.0, 31.0, 700.0, 4200.0):
            loop.advance(until_s)
        began_s += loop.drain()
        loops.append(loop)
    return loops


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("times_slots", [0.5, 3.0])
def test_both_loops_agree_to_the_last_bit(scenario: Scenario, times_slots: float) -> None:
    users = max(1, round(times_slots * scenario.server.slots))
    for plain, compiled in zip(
        played(scenario, users, compiled=False), played(scenario, users, compiled=True), strict=True
    ):
        assert plain.sent == compiled.sent > users
        assert plain.now_s == compiled.now_s
        for name in ("user", "start_s", "ttft_s", "tpot_s", "e2e_s", "ok", "prompt_tokens", "output_tokens"):
            np.testing.assert_array_equal(
                getattr(plain.requests(), name), getattr(compiled.requests(), name), err_msg=name
            )
        np.testing.assert_array_equal(plain.waits_s(), compiled.waits_s())


def test_open_requests_are_the_same_in_mid_run(make_scenario) -> None:
    scenario = make_scenario(slots=2, queue_limit=1)
    loops = [closed_loop(scenario, 9, np.random.SeedSequence(3), compiled=compiled) for compiled in (False, True)]
    for until_s in np.linspace(0.0, 300.0, 200):
        for loop in loops:
            loop.advance(float(until_s))
        for plain, compiled in zip(loops[0].pending(), loops[1].pending(), strict=True):
            np.testing.assert_array_equal(plain, compiled)
        np.testing.assert_array_equal(loops[0].pending_users(), loops[1].pending_users())
