from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from deployctl.simulator import truth as module
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.truth import find_truth

Make = Callable[..., Scenario]


def test_the_reference_holds_eleven_and_with_speed_noise_ten(reference: Scenario) -> None:
    # N* as stated with the model by an independent program (the issue).
    plain = find_truth(reference)
    assert (plain.n_star, plain.at_least, plain.sure) == (11, False, True)
    data = reference.model_dump(mode="json")
    data["server"]["speed_noise"] = {"cv": 0.15, "tau_s": 60}
    noisy = find_truth(Scenario.model_validate(data))
    assert (noisy.n_star, noisy.sure) == (10, True)


def test_the_two_levels_around_it_are_long_runs_well_away_from_the_target(reference: Scenario) -> None:
    found = find_truth(reference)
    assert [level.users for level in found.levels] == [11, 12]
    for level in found.levels:
        assert level.requests >= 200_000
        assert abs(level.attainment - 0.95) >= 3 * level.error


def test_it_agrees_with_the_machine_repairman_queue(make_scenario: Make) -> None:
    """M/M/2//N with mean service 1 s and mean think 5 s: P(wait <= 1) by the arrival theorem (Sevcik, Mitrani 1981)."""
    scenario = make_scenario(
        prefill_tokens_per_s=1e12,
        decode_tokens_per_s=[1000.0, 2000.0],
        workload={
            "prompt_tokens": {"dist": "constant", "mean": 1},
            "output_tokens": {"dist": "exponential", "mean": 1000},
            "think_s": {"dist": "exponential", "mean": 5},
        },
        slo={"ttft_s": 1.001, "attainment": 0.9},  # the first of 1,000 tokens comes 1 ms after the wait
    )

    def attainment(users: int) -> float:
        weights = [1.0]
        for present in range(1, users):
            weights.append(weights[-1] * (users - present) / 5.0 / min(present, 2))
        late = sum(
            weight * sum(math.exp(-2.0) * 2.0**i / math.factorial(i) for i in range(present - 1))
            for present, weight in enumerate(weights)
            if present >= 2
        )
        return 1 - late / sum(weights)

    expected = max(users for users in range(1, 30) if attainment(users) >= 0.9)
    assert abs(attainment(expected) - 0.9) > 0.004  # so that the truth is not a toss-up
    assert abs(attainment(expected + 1) - 0.9) > 0.004
    assert find_truth(scenario).n_star == expected


def test_an_slo_that_nobody_can_meet_has_no_users_and_one_that_never_breaks_has_the_maximum(
    make_scenario: Make,
) -> None:
    nobody = find_truth(make_scenario(slo={"ttft_s": 0.01}))
    assert (nobody.n_star, nobody.at_least) == (0, False)
    all_of_them = find_truth(make_scenario(slo={"tpot_s": 10.0}), max_users=30)
    assert (all_of_them.n_star, all_of_them.at_least) == (30, True)


def test_it_finds_the_highest_level_where_more_users_do_better_than_one(make_scenario: Make) -> None:
    # Alone a token takes 1 s, in company 0.125 s: one user fails the TPOT, two mostly keep it.
    scenario = make_scenario(
        decode_tokens_per_s=[1.0, 16.0],
        workload={"think_s": {"dist": "constant", "mean": 0}},
        slo={"tpot_s": 0.2, "ttft_s": 8.0, "attainment": 0.5},
    )
    assert find_truth(scenario, max_users=50).n_star >= 2


def test_transients_are_no_part_of_the_long_run(reference: Scenario) -> None:
    data = reference.model_dump(mode="json")
    data["server"] |= {"steal": [{"from_s": 100, "to_s": 1e6, "fraction": 0.9}], "drift_per_hour": 0.5}
    assert find_truth(Scenario.model_validate(data)).n_star == 11


def test_a_known_truth_is_read_back_and_a_broken_file_is_computed_again(
    make_scenario: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(slo={"ttft_s": 0.01})
    first = find_truth(scenario, cache=tmp_path)
    (kept,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_Finder", None)  # computing would now fail
        assert find_truth(scenario, cache=tmp_path) == first
    kept.write_text("{")
    assert find_truth(scenario, cache=tmp_path) == first
    renamed = scenario.model_copy(update={"name": "other"})
    find_truth(renamed, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
