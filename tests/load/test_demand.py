"""The laws of what users ask, in the server's tokens."""

import numpy as np
import pytest

from deployctl.catalog.distributions import Dist
from deployctl.load.baseline import Baseline
from deployctl.load.demand import calibration, demand_of


def alone(**changes):
    rates = {"prefill_tokens_per_s": 1, "decode_tokens_per_s": 1, "ttft_s": 1, "tpot_s": 1, "e2e_s": 1}
    counts = {"requests": 4, "prompt_tokens": 60, "output_tokens": 12, "short_answers": 0, "prompt_ratio": 1.5}
    return Baseline(**rates | counts | changes)


@pytest.mark.parametrize(
    "law",
    [
        {"dist": "lognormal", "mean": 70, "cv": 1.5, "min": 8, "max": 2048},
        {"dist": "exponential", "mean": 20, "max": 120},
        {"dist": "uniform", "min": 3, "max": 6},
        {"dist": "constant", "mean": 7},
        {"dist": "empirical", "values": [1, 5, 9], "max": 6},
    ],
)
def test_a_scaled_law_draws_the_scaled_values(law):
    plain = Dist.model_validate(law)
    doubled = plain.scaled(2.5)
    drawn = plain.sample(np.random.default_rng(3), 200)
    assert doubled.sample(np.random.default_rng(3), 200) == pytest.approx(2.5 * drawn)
    assert doubled.expected() == pytest.approx(2.5 * plain.expected())


def test_a_law_is_not_scaled_away():
    with pytest.raises(ValueError, match="above 0"):
        Dist(dist="constant", mean=3).scaled(0)


def test_prompts_are_told_in_the_servers_tokens_and_answers_as_asked(make_workload):
    workload = make_workload(prompt_tokens=40)
    demand = demand_of(workload, alone())
    assert demand.prompt_tokens.expected() == pytest.approx(60)
    assert (demand.output_tokens, demand.think_s) == (workload.output_tokens, workload.think_s)


def test_earlier_turns_and_servers_that_count_nothing_scale_nothing(make_workload):
    known = alone(read_tokens_per_s=900.0)
    assert calibration(make_workload(), known).prompt_ratio == 1.5
    assert calibration(make_workload(), known).read_tokens_per_s == 900
    for shared in (make_workload(turns=3), make_workload(warm=True)):
        assert calibration(shared, known).prompt_ratio == 1
        assert calibration(shared, known).read_tokens_per_s == 0
    assert calibration(make_workload(), alone(prompt_ratio=0.0)).prompt_ratio == 1


def test_answers_that_end_early_follow_no_law_that_is_known(make_workload):
    assert demand_of(make_workload(), alone(short_answers=0.25)) is None
