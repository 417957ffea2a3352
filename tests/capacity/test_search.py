import math
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from deployctl.capacity.probe import Slo
from deployctl.capacity.search import Budget, Prior, search
from deployctl.errors import UsageError
from deployctl.events import ProbeEnded, ProbeMoved
from deployctl.simulator.bench import baseline_prior
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.scenario import load_scenario

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SLO = Slo(ttft_s=2.0, attainment=0.95)  # M/M/2//N, service 1 s, think 5 s: capacity 8 in closed form


def test_the_closed_form_of_the_test_queue_agrees_with_a_hand_worked_case(repairman):
    # M/M/1//2, service 1, think 1: an arrival sees the other user at the server half of the time, for Exp(1) more.
    queue = repairman(slots=1, service_s=1.0, think_s=1.0)
    assert queue.attainment(2, 1.0) == pytest.approx(0.5 + 0.5 * (1 - 2.718281828459045**-1))


@pytest.mark.parametrize("seed", range(4))
def test_a_known_queue_is_certified_near_its_capacity(repairman, seed):
    result = search(repairman(seed=seed), SLO, Prior(8, 2), Budget(4 * 3600))
    assert result.status == "certified"
    assert 6 <= result.certified_users <= 8
    assert result.at_most_users is None or result.at_most_users >= 8
    assert result.limited_by in ("ttft", None)


def test_no_user_at_all_needs_evidence_and_is_then_a_clear_no(repairman):
    result = search(repairman(slots=1), Slo(e2e_s=0.2, attainment=0.95), Prior(4, 1), Budget(3600))
    assert (result.status, result.certified_users, result.at_most_users) == ("not_met", 0, 0)
    assert result.limited_by == "e2e"


def test_failures_limit_however_quick_the_rest_is(repairman):
    result = search(repairman(slots=8, fail_share=0.3), SLO, Prior(4, 8), Budget(3600))
    assert result.status == "not_met"
    assert result.limited_by == "failures"


def test_a_maximum_that_still_passes_is_said_to_be_a_lower_bound(repairman):
    result = search(repairman(slots=16), SLO, Prior(4, 16), Budget(4 * 3600), max_users=6)
    assert (result.status, result.certified_users, result.at_most_users) == ("at_least", 6, None)


def test_a_few_seconds_prove_nothing_and_say_so(repairman):
    result = search(repairman(), SLO, Prior(8, 2), Budget(20))
    assert (result.status, result.certified_users) == ("inconclusive", 0)


@pytest.mark.parametrize("seed", range(5))
def test_two_minutes_on_a_small_host_certify_somebody_and_are_not_exceeded(repairman, seed):
    queue = repairman(slots=2, service_s=0.5, think_s=1.0, seed=seed)
    result = search(queue, Slo(ttft_s=2.0, attainment=0.9), Prior(None, 2), Budget(120))
    assert result.certified_users >= 1
    assert queue.spent <= 120 + 10  # one request of this queue takes well under 10 s


def test_a_void_probe_is_repeated_once(repairman):
    result = search(repairman(invalid_probes=1), SLO, Prior(8, 2), Budget(4 * 3600))
    assert result.status == "certified"
    assert result.probes[0].users == result.probes[1].users
    assert [p.verdict == "invalid" for p in result.probes] == [True] + [False] * (len(result.probes) - 1)
    assert result.probes[0].invalid_reasons == ("host: CPU steal",)


def test_a_level_that_is_void_twice_ends_the_search_as_invalid(repairman):
    result = search(repairman(invalid_probes=9), SLO, Prior(8, 2), Budget(4 * 3600))
    assert (result.status, result.certified_users) == ("invalid", 0)
    assert len(result.probes) == 2


def test_visits_to_one_level_in_a_row_are_one_probe_with_all_their_requests():
    # Users start anew in step with a fitted model of the host: a level is left and visited again at once.
    scenario = load_scenario(BENCHMARKS / "scenarios" / "reference.yml")
    again = 0
    for seed in range(4):
        prober = VirtualProber(scenario, seed)
        ended = []
        prior = baseline_prior(prober)
        result = search(prober, scenario.slo.to_slo(), prior, Budget(mode="certify"), emit=ended.append)
        levels = [probe.users for probe in result.probes]
        assert all(a != b for a, b in pairwise(levels))
        events = [event for event in ended if isinstance(event, ProbeEnded)]
        assert math.fsum(event.seconds for event in events) == pytest.approx(
            math.fsum(p.seconds for p in result.probes)
        )
        again += len(events) - len(levels)
    assert again > 0  # some of them did go back to a level


def test_every_second_is_accounted_for(repairman):
    queue = repairman()
    result = search(queue, SLO, Prior(8, 2), Budget(4 * 3600))
    assert set(result.seconds_by_activity) == {"warm-up", "deciding", "draining"}
    assert sum(result.seconds_by_activity.values()) == pytest.approx(queue.spent)
    assert sum(probe.seconds for probe in result.probes) == pytest.approx(queue.spent)


def test_the_search_tells_what_it_is_doing(repairman):
    events = []
    result = search(repairman(), SLO, Prior(8, 2), Budget(4 * 3600), emit=events.append)
    ended = [event for event in events if isinstance(event, ProbeEnded)]
    visits = [list(group) for _, group in groupby(ended, lambda event: event.users)]  # a void one would stand alone
    assert [(group[-1].users, group[-1].verdict) for group in visits] == [(p.users, p.verdict) for p in result.probes]
    assert any(isinstance(event, ProbeMoved) for event in events)


@pytest.mark.parametrize("attainment", [0.0, 1.0, 1.5])
def test_an_slo_that_no_test_can_prove_is_refused(repairman, attainment):
    with pytest.raises(UsageError, match="attainment"):
        search(repairman(), Slo(ttft_s=2.0, attainment=attainment))
