from __future__ import annotations

from pathlib import Path

import pytest

from deployctl.errors import UsageError
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.sold import Question, bench_sold, figures, sold_numbers


def asked(users: int, verdict: str, minutes: float = 10.0, rate: float = 1.0) -> Question:
    return Question("x", 10, users, verdict, minutes * 60, rate)  # type: ignore[arg-type]


def test_figures_are_those_of_a_count_by_hand() -> None:
    found = figures(
        [asked(8, "pass", 5), asked(8, "fail", 10), asked(12, "fail", 20), asked(12, "inconclusive", 40)],
    )
    assert found["questions"] == 4
    assert found["error_rate"] == 0.25
    # Clopper-Pearson, one-sided 95 %, 1 of 4 (any table): 0.7514
    assert found["error_upper"] == pytest.approx(0.7514, abs=1e-4)
    assert found["inconclusive_rate"] == 0.25
    assert found["median_minutes"] == 15.0


@pytest.mark.parametrize(
    ("n_star", "numbers"), [(10, (8, 12)), (11, (8, 14)), (1, (2,)), (4, (3, 5)), (0, (1,)), (900, (720,))]
)
def test_sold_numbers_are_a_fifth_off_and_within_reach(n_star: int, numbers: tuple[int, ...]) -> None:
    assert sold_numbers(n_star, 1000) == numbers


def test_questions_are_answered_alike_on_one_core_and_on_two(reference: Scenario, tmp_path: Path) -> None:
    # N* = 11 by an independent program (see test_virtual): 8 holds, 14 does not.
    one = bench_sold([reference], 3, workers=1, cache=tmp_path)
    assert one["scenarios"][0]["asked"] == [8, 14]
    assert one["pooled"]["questions"] == 6
    assert one["pooled"]["error_rate"] == 0.0
    assert bench_sold([reference], 3, workers=2, cache=tmp_path) == one


def test_no_seeds_are_refused(reference: Scenario) -> None:
    with pytest.raises(UsageError):
        bench_sold([reference], 0)
