from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deployctl.errors import UsageError
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.whatif import find_capacity, simulate

Make = Callable[..., Scenario]


def test_the_reference_at_eleven_users_meets_its_slo_with_the_known_attainment(reference: Scenario) -> None:
    answer = simulate(reference, 11)
    assert answer.attainment == pytest.approx(0.9559, abs=4 * (answer.attainment_error + 0.0012))
    assert answer.meets_slo
    assert not simulate(reference, 13).meets_slo


def test_utilisation_queue_and_rates_obey_little(reference: Scenario) -> None:
    answer = simulate(reference, 12)
    in_use = answer.utilisation * 4
    # 12 users = those that think (rate x 20 s) + those in a slot + those that wait.
    assert answer.requests_per_s * 20 + in_use + answer.waiting == pytest.approx(12, rel=0.02)
    assert answer.output_tokens_per_s == pytest.approx(answer.requests_per_s * 150, rel=0.03)


def test_constant_times_give_constant_percentiles(make_scenario: Make) -> None:
    # One user of the small server, by hand: TTFT 0.3, TPOT 0.1, end 2.2, one request each 22.2 s.
    document = simulate(make_scenario(), 1, requests=1000).document()
    assert document["ttft_s"] == pytest.approx({"p50": 0.3, "p95": 0.3, "p99": 0.3})
    assert document["tpot_s"]["p95"] == pytest.approx(0.1)
    assert document["e2e_s"]["p99"] == pytest.approx(2.2)
    assert document["requests_per_s"] == pytest.approx(1 / 22.2)
    assert document["utilisation"] == pytest.approx(2.2 / 22.2 / 2)
    assert document["attainment"] == 1.0


def test_refused_requests_are_counted_and_leave_json_whole(make_scenario: Make) -> None:
    scenario = make_scenario(queue_limit=0, workload={"think_s": {"dist": "constant", "mean": 20}})
    answer = simulate(scenario, 5, requests=2000)
    assert 0 < answer.refused_share < 1
    assert json.loads(json.dumps(answer.document(), allow_nan=False))["refused_share"] == answer.refused_share


def test_two_hosts_with_twice_the_users_hold_about_the_same_attainment(reference: Scenario) -> None:
    # Round robin of a Poisson-like stream is more even than chance, so a little better, never worse.
    one, two = simulate(reference, 11), simulate(reference, 22, hosts=2)
    assert two.attainment >= one.attainment - 4 * (one.attainment_error + two.attainment_error)
    assert two.utilisation == pytest.approx(one.utilisation, rel=0.03)


def test_the_capacity_of_two_hosts_is_found_between_levels_that_were_played(make_scenario: Make) -> None:
    lengths = {
        "prompt_tokens": {"dist": "constant", "mean": 10},
        "output_tokens": {"dist": "exponential", "mean": 20},
        "think_s": {"dist": "exponential", "mean": 10},
    }
    scenario = make_scenario(workload=lengths, slo={"ttft_s": 1.5})
    alone = find_capacity(scenario)
    pair = find_capacity(scenario, hosts=2, balancing="least-connections")
    assert pair.n_star >= 2 * alone.n_star  # two pooled hosts hold at least what two single ones do
    assert simulate(scenario, pair.n_star, hosts=2, balancing="least-connections").attainment > 0.94
    assert simulate(scenario, pair.n_star_high + 3, hosts=2, balancing="least-connections").attainment < 0.955


def test_a_capacity_beyond_the_maximum_is_at_least_that(make_scenario: Make) -> None:
    scenario = make_scenario(slo={"tpot_s": 10.0})
    assert find_capacity(scenario, max_users=40).at_least
    assert find_capacity(scenario, max_users=40, hosts=2).n_star == 40


def test_an_slo_that_nobody_can_meet_has_capacity_zero(make_scenario: Make) -> None:
    scenario = make_scenario(slo={"ttft_s": 0.01})
    assert find_capacity(scenario, hosts=1).n_star == 0
    assert find_capacity(scenario, hosts=3).n_star == 0


@pytest.mark.parametrize(
    ("users", "hosts", "balancing"), [(0, 1, "round-robin"), (1, 0, "round-robin"), (1, 1, "dice")]
)
def test_senseless_numbers_are_refused(reference: Scenario, users: int, hosts: int, balancing: str) -> None:
    with pytest.raises(UsageError):
        simulate(reference, users, hosts=hosts, balancing=balancing)  # type: ignore[arg-type]
