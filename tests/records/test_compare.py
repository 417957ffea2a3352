from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.records.compare import compare, difference_interval
from deployctl.records.schema import Record

Example = Callable[[str], Record]


def with_capacity(record: Record, **changes: Any) -> Record:
    return record.model_copy(update={"capacity": record.capacity.model_copy(update=changes)})


def test_the_interval_of_a_difference_equals_newcombes_published_example() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table II, case (a): 56/70 against 48/80, method 10 gives 0.0524, 0.3339.
    # The limits given here are Wilson's at 95 %, computed by hand.
    low, high = difference_interval((48 / 80, 0.490455, 0.700382), (56 / 70, 0.691834, 0.876953))
    assert low == pytest.approx(0.0524, abs=1e-4)
    assert high == pytest.approx(0.3339, abs=1e-4)


shares = st.tuples(*[st.floats(0, 1)] * 3).map(lambda three: (sorted(three)[1], min(three), max(three)))


@given(shares, shares)
def test_the_interval_holds_the_difference_and_turns_with_the_order(first: Any, second: Any) -> None:
    low, high = difference_interval(first, second)
    assert -1 <= low <= second[0] - first[0] <= high <= 1
    assert difference_interval(second, first) == pytest.approx((-high, -low))


def test_a_run_compared_with_itself_changes_nothing(any_example: Record) -> None:
    same = compare(any_example, any_example)
    assert same.changed == ()
    assert all(level.difference == 0 and not level.decided for level in same.attainment)
    assert same.users is None or (same.users.certified == 0 and same.users.direction in ("equal", "not decided"))


@pytest.mark.parametrize(
    ("before", "after", "low", "high", "direction"),
    [
        ((11, 11), (14, 15), 3, 4, "more"),
        ((11, 12), (9, 10), -3, -1, "fewer"),
        ((11, 12), (12, 13), 0, 2, "not decided"),
        ((11, 11), (11, 11), 0, 0, "equal"),
        ((11, None), (14, 14), None, 3, "not decided"),
        ((11, None), (9, 10), None, -1, "fewer"),
        ((11, 11), (14, None), 3, None, "more"),
    ],
)
def test_a_change_of_users_is_only_claimed_when_the_brackets_do_not_meet(
    example: Example, before: Any, after: Any, low: int | None, high: int | None, direction: str
) -> None:
    record = example("certified")
    first = with_capacity(record, certified_users=before[0], at_most_users=before[1])
    second = with_capacity(record, certified_users=after[0], at_most_users=after[1])
    change = compare(first, second).users
    assert change is not None
    assert (change.low, change.high, change.direction) == (low, high, direction)
    assert change.certified == after[0] - before[0]


def test_an_invalid_run_has_no_change_of_users_and_its_void_probes_are_left_out(example: Example) -> None:
    found = compare(example("certified"), example("invalid"))
    assert found.users is None
    assert [level.users for level in found.attainment] == [1]


def test_probes_without_an_interval_are_left_out(example: Example) -> None:
    assert [level.users for level in compare(example("certified"), example("inconclusive")).attainment] == [1]


def test_what_else_changed_is_named_with_both_values(example: Example) -> None:
    before = example("certified")
    assert before.host is not None
    settings = {**before.deployment.settings, "OLLAMA_NUM_PARALLEL": 8}
    after = before.model_copy(
        update={
            "host": before.host.model_copy(update={"kernel": "6.12.57"}),
            "deployment": before.deployment.model_copy(update={"settings": settings}),
        }
    )
    changed = [(change.name, change.before, change.after) for change in compare(before, after).changed]
    assert changed == [
        ("host.kernel", "6.12.48+deb13-cloud-amd64", "6.12.57"),
        ("settings.OLLAMA_NUM_PARALLEL", "4", "8"),
    ]


def test_runs_that_answer_different_questions_say_so(example: Example) -> None:
    assert compare(example("certified"), example("at_least")).obstacles == ()
    found = compare(example("certified"), example("minimal")).obstacles
    assert found == (
        "another model", "another SLO", "another workload", "another engine", "run 20261117T101112Z-0001 was cancelled",
    )  # fmt: skip
