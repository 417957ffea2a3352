import numpy as np
import pytest

from deployctl.capacity.belief import Belief, Seen


def test_without_data_the_guess_is_believed():
    posterior = Belief(0.95, 20.0, 1000, spread=0.1, stray=0.01).given([])
    assert posterior.quantile(0.5) == pytest.approx(20, abs=1)
    assert 14 <= posterior.quantile(0.05) < posterior.quantile(0.95) <= 26


def test_data_move_the_belief_between_a_level_that_holds_and_one_that_does_not():
    posterior = Belief(0.95, 50.0, 1000).given([Seen(8, 395.0, 5.0), Seen(12, 340.0, 60.0)])
    assert posterior.quantile(0.05) >= 8
    assert posterior.quantile(0.95) <= 11


def test_more_users_never_do_better_in_any_curve():
    posterior = Belief(0.9, 10.0, 100).given([])
    assert (np.diff(posterior.miss(np.arange(1, 40)), axis=1) >= 0).all()


def test_a_curve_meets_the_target_exactly_at_its_knee():
    belief = Belief(0.95, 10.0, 100)
    assert belief.miss(np.array([np.log(7.0)]), np.array([6.0]), np.array([7.0]))[0, 0] == pytest.approx(0.05)


def test_weights_are_a_distribution():
    posterior = Belief(0.95, None, 100).given([Seen(5, 50.0, 1.0)])
    assert posterior.weights.sum() == pytest.approx(1.0)
