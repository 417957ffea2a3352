import math

import pytest

from deployctl.capacity.hold import holds
from deployctl.capacity.probe import Slo
from deployctl.capacity.result import Prior
from deployctl.errors import UsageError

SLO = Slo(ttft_s=2.0, attainment=0.95)  # M/M/2//N, service 1 s, think 5 s: capacity 8 in closed form


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("users", "verdict"), [(6, "pass"), (10, "fail")])
def test_a_number_well_off_the_capacity_is_decided(repairman, users, verdict, seed):
    queue = repairman(seed=seed)
    held = holds(queue, SLO, users, Prior(8, 2))
    assert (held.verdict, held.users) == (verdict, users)
    assert held.attainment_low <= queue.attainment(users, SLO.ttft_s) <= held.attainment_high
    assert set(queue.levels) == {users}
    assert held.limited_by == ("ttft" if verdict == "fail" else held.limited_by)


def test_a_number_at_the_very_edge_is_not_decided_in_a_minute(repairman):
    held = holds(repairman(), SLO, 8, Prior(8, 2), budget_s=60)
    assert held.verdict == "inconclusive"
    assert held.attainment_low < SLO.attainment < held.attainment_high


def test_a_void_probe_is_repeated_once_and_then_ends_the_question(repairman):
    assert holds(repairman(invalid_probes=1), SLO, 6, Prior(8, 2)).verdict == "pass"
    held = holds(repairman(invalid_probes=2), SLO, 6, Prior(8, 2))
    assert (held.verdict, held.effective_n) == ("invalid", 0.0)
    assert held.probes[-1].invalid_reasons == ("host: CPU steal",)


def test_every_second_is_accounted_for(repairman):
    queue = repairman()
    held = holds(queue, SLO, 6, Prior(8, 2))
    assert math.fsum(held.seconds_by_activity.values()) == pytest.approx(queue.spent)


@pytest.mark.parametrize("wrong", [{"users": 0}, {"budget_s": 0.0}, {"confidence": 1.0}, {"slo": Slo(attainment=1.0)}])
def test_a_question_without_an_answer_is_refused(repairman, wrong):
    with pytest.raises(UsageError):
        holds(**({"prober": repairman(), "slo": SLO, "users": 6} | wrong))
