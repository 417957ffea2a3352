import math

import numpy as np
import pytest

from deployctl.capacity.evidence import EXPLORED_CYCLES, Series, steady, usual_inflation, weigh
from deployctl.capacity.probe import Look, Slo


def series(missed, margin=None):
    missed = np.array(missed, dtype=float)
    return Series(missed, missed * 2 if margin is None else np.array(margin), 10.0 * len(missed), np.zeros(len(missed)))


def test_one_user_alone_is_worth_every_request():
    found = weigh(series(np.zeros(60)), 1)
    assert found.effective_n == pytest.approx(60)
    assert found.attainment == 1.0
    assert found.low == pytest.approx(0.025 ** (1 / 60))  # the exact two-sided bound without a miss


def test_many_users_are_worth_fewer_until_shown_otherwise():
    assert weigh(series(np.zeros(60)), 8).effective_n < 30
    assert usual_inflation(1) < usual_inflation(2) < usual_inflation(20)


def test_the_first_cycles_prove_nothing():
    few = weigh(series(np.zeros(int(EXPLORED_CYCLES * 4))), 4)
    assert not few.committed
    assert few.for_passing(0.9) == 0.0
    assert weigh(series(np.zeros(400)), 4).for_passing(0.9) > math.log(20)


def test_misses_in_the_exploratory_cycles_do_not_count_against_a_level_but_later_ones_do():
    early, late = np.zeros(200), np.zeros(200)
    early[0] = late[150] = 1.0
    assert weigh(series(early), 1).for_passing(0.9) > weigh(series(late), 1).for_passing(0.9)


def test_the_warm_up_is_left_out(table):
    # One user, a request every 10 s: the first cycle and a quarter do not count.
    look = Look(1, 100.0, table(np.arange(0, 100, 10.0), ttft=np.ones(10)), np.zeros(0))
    kept, warm_until = steady(look, Slo(ttft_s=2.0))
    assert warm_until == pytest.approx(12.5)
    assert len(kept.missed) == 8


def test_nothing_seen_is_no_evidence():
    found = weigh(series([]), 3)
    assert found.requests == 0
    assert found.for_passing(0.9) == found.for_failing(0.9) == 0.0


def test_clustered_misses_are_worth_less_than_scattered_ones() -> None:
    scattered, clustered = np.zeros(1000), np.zeros(1000)
    scattered[::25] = 1.0
    clustered[200:240] = 1.0
    assert weigh(series(clustered), 5).effective_n < 0.3 * weigh(series(scattered), 5).effective_n
