"""The test for a fall: its theory against published figures, its promises by simulation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from deployctl.records.regression import (
    LEARN,
    Night,
    chart,
    decision_interval,
    judge,
    power_of,
    run_length,
    signals_of,
    suspects,
)

RATE = 0.01 / 16


def noisy(count: int, spread: float, rng: np.random.Generator, drop: float = 0.0) -> list[Night]:
    return [
        Night(str(i), decode_tokens_per_s=40 * (1 - drop) * math.exp(rng.normal(0, spread)), facts={"kernel": "6.1"})
        for i in range(count)
    ]


@pytest.mark.parametrize(
    # Average run lengths of a one-sided CUSUM on normal scores. Montgomery, "Introduction to Statistical Quality
    # Control", table 9.4 gives two-sided ones for k = 1/2; without shift the one-sided length is twice as long,
    # one the other side hardly matters: h = 4: 168 and 8.38, 4.75; h = 5: 465 and 10.4, 5.75 (shifts 0, 1, 1.5).
    ("h", "shift", "expected"),
    [(4.0, 0.0, 336), (4.0, 1.0, 8.38), (4.0, 1.5, 4.75), (5.0, 0.0, 930), (5.0, 1.0, 10.4), (5.0, 1.5, 5.75)],
)
def test_run_lengths_are_those_of_the_textbook(h: float, shift: float, expected: float) -> None:
    # Winsorising at three spreads changes them a little: by 3 % at most here.
    assert run_length(0.5, h, shift) == pytest.approx(expected, rel=0.06)


def test_the_decision_interval_has_the_run_length_that_was_asked_for() -> None:
    for k, rate in ((0.5, 0.01), (0.8, 0.001), (1.0, 0.0005)):
        assert run_length(k, decision_interval(k, rate)) == pytest.approx(2 / rate, rel=0.05)


def test_the_largest_single_score_never_reaches_the_decision_interval() -> None:
    for k in (0.5, 1.0, 1.5):
        assert decision_interval(k, 0.05) > 3.0 - k


def test_many_nights_of_the_same_whole_number_do_not_make_one_less_a_fall() -> None:
    nights = [Night(str(i), users=9) for i in range(30)] + [Night("x", users=8), Night("y", users=8)]
    assert judge(nights).state == "steady"
    assert judge([*nights, *(Night("z", users=5) for _ in range(3))]).open is not None


def test_the_power_is_what_playing_it_gives() -> None:
    rng = np.random.default_rng(5)
    k, h, shift = 1.0, 2.2, 2.0
    scores = np.clip(rng.normal(shift, 1, (20_000, 3)), -3, 3)
    sums = np.zeros(20_000)
    found = np.zeros(20_000, bool)
    for night in range(3):
        sums = np.maximum(0, sums + scores[:, night] - k)
        found |= sums > h
    assert power_of(shift, k, h) == pytest.approx(float(found.mean()), abs=0.015)


def test_one_bad_night_is_never_an_alarm_and_two_are() -> None:
    rng = np.random.default_rng(1)
    calm = [math.log(40) + x for x in rng.normal(0, 0.015, 20)]
    assert chart("x", [*calm, calm[-1] - 5.0], rate=RATE).shifts == ()
    (shift,) = chart("x", [*calm, calm[-1] - 0.2, calm[-1] - 0.2], rate=RATE).shifts
    assert (shift.direction, shift.began, shift.at) == ("down", 20, 21)
    assert shift.low < math.expm1(-0.2) < shift.high


def test_nothing_is_said_before_there_is_a_history() -> None:
    nights = noisy(LEARN + 1, 0.01, np.random.default_rng(2))
    assert judge(nights).state == "learning"
    assert judge([]).state == "learning"


def test_a_night_that_measured_nothing_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    full = noisy(20, 0.02, rng)
    holes = [night for one in full for night in (one, Night("hole"))]
    assert [c.noise for c in judge(full).charts] == [c.noise for c in judge(holes).charts]


def test_after_an_alarm_the_new_state_is_the_normal_one_and_a_return_is_found() -> None:
    rng = np.random.default_rng(4)
    values = [math.log(level) + rng.normal(0, 0.012) for level in [40] * 20 + [34] * 25 + [40] * 10]
    found = [(shift.direction, shift.began) for shift in chart("x", values, rate=RATE).shifts]
    assert found == [("down", 20), ("up", 45)]


def test_what_changed_with_it_is_named() -> None:
    rng = np.random.default_rng(6)
    before = noisy(20, 0.01, rng)
    after = [
        Night(n.id, decode_tokens_per_s=n.decode_tokens_per_s, facts={"kernel": "6.2"})
        for n in noisy(3, 0.01, rng, 0.15)
    ]
    judged = judge([*before, *after])
    assert judged.suspects == (("kernel", "6.1", "6.2"),)
    assert judged.open is not None
    assert judge([*before, *after, *noisy(1, 0.01, rng, 0.15)]).state == "learning"
    assert suspects([*before, *after], 0) == ()


def test_certified_users_and_the_level_that_most_nights_held_are_signals() -> None:
    nights = [Night("a", users=0, levels={4: 0.1, 6: 0.2}), Night("b", users=9, levels={6: 0.1}), Night("c")]
    found = signals_of(nights)
    assert found["certified users"] == [math.log(0.5), math.log(9.5), None]
    assert found["speed at 6 users"] == [-math.log(0.2), -math.log(0.1), None]
    assert set(found) == {"certified users", "speed at 6 users"}


def test_nights_without_a_change_alarm_less_often_than_promised() -> None:
    rng = np.random.default_rng(7)
    alarms = judged = 0
    for _ in range(60):
        steps = rng.standard_t(5, 100) / math.sqrt(5 / 3) * 0.02
        alarms += len([s for s in chart("x", list(steps), rate=RATE).shifts if s.direction == "down"])
        judged += 100 - LEARN - 2
    assert alarms / judged < 0.01 / 4  # one of four signals


def test_a_tenth_less_is_found_within_three_nights() -> None:
    rng = np.random.default_rng(8)
    hits = [
        any(
            shift.direction == "down" and shift.at >= 30
            for one in judge([*noisy(30, 0.02, rng), *noisy(3, 0.02, rng, 0.10)]).charts
            for shift in one.shifts
        )
        for _ in range(120)
    ]
    assert np.mean(hits) >= 0.9


def test_the_library_of_the_benchmark_holds_real_searches(root: Path) -> None:
    rows = json.loads((root / "benchmarks" / "regression" / "library.json").read_text())
    full = [row["users"] for row in rows if row["scenario"] == "reference" and row["speed"] == 1.0 and row["users"]]
    assert full
    assert max(full) <= 11  # the capacity of the reference case: a search sells no more
