import numpy as np
import pytest

from deployctl.capacity.belief import Belief
from deployctl.capacity.levels import Plan, candidates, log_need, shortfall


def test_within_one_user_or_the_tolerance_a_shortfall_is_next_to_nothing():
    capacity = np.array([11.0, 100.0])
    assert shortfall(10.0, capacity[:1], 0.05, 1000.0) == pytest.approx([0.1])
    assert shortfall(95.0, capacity[1:], 0.05, 1000.0) == pytest.approx([0.1])
    assert shortfall(9.0, capacity[:1], 0.05, 1000.0)[0] > 1.0


def test_selling_nothing_is_worse_than_any_small_number():
    assert shortfall(0.0, np.array([5.0]), 0.05, 1000.0)[0] > shortfall(1.0, np.array([5.0]), 0.05, 1000.0)[0] + 3.0


def test_a_capacity_beyond_the_maximum_asks_for_the_maximum_itself():
    assert shortfall(20.0, np.array([500.0]), 0.05, 20.0) == pytest.approx([0.0])
    assert shortfall(19.0, np.array([500.0]), 0.05, 20.0)[0] >= 0.5


def test_candidates_lie_between_what_is_certified_and_the_ceiling():
    posterior = Belief(0.95, 300.0, 1000).given([])
    levels = candidates(50, 400, posterior, keep=333)
    assert levels.min() == 51
    assert levels.max() == 399
    assert 333 in levels
    assert len(candidates(9, 10, posterior)) == 0


def test_a_plan_prefers_gain_less_the_price_of_time():
    plan = Plan(np.array([4, 5, 6]), np.array([1.0, 3.0, 3.5]), np.array([100.0, 1000.0, 9000.0]), 1e-3)
    assert plan.best(spare=False) == 5  # 0.9, 2.0 and -5.5
    dear = Plan(np.array([4, 5]), np.array([0.5, 1.0]), np.array([1000.0, 3000.0]), 1e-3)
    assert dear.best(spare=False) is None
    assert dear.best(spare=True) == 4  # paid time goes where it brings most per second


def test_evidence_that_is_there_need_not_be_gathered_again():
    assert log_need(0.05, 0.0) - log_need(0.05, 1.5) == pytest.approx(1.5)
    assert log_need(0.05, 99.0) > 0
