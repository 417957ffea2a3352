import numpy as np

from deployctl.capacity.attainment import judge, limiting_factor, met, misses
from deployctl.capacity.probe import Look, Slo


def test_every_threshold_must_be_met_by_the_same_request(table):
    requests = table([0, 1, 2, 3], ttft=[1, 9, 1, 1], tpot=[0.1, 0.1, 0.9, 0.1], e2e=[5, 12, 5, 5])
    assert met(requests, Slo(ttft_s=2, tpot_s=0.5)).tolist() == [True, False, False, True]


def test_a_failed_request_is_a_miss_even_without_any_threshold(table):
    requests = table([0, 1], ttft=[1, 1], ok=[True, False])
    assert met(requests, Slo()).tolist() == [True, False]
    assert misses(requests, Slo(ttft_s=2))["failures"].tolist() == [False, True]
    assert not misses(requests, Slo(ttft_s=2))["ttft"].any()


def test_a_request_exactly_at_the_threshold_meets_it(table):
    assert met(table([0], ttft=[2.0]), Slo(ttft_s=2.0)).tolist() == [True]


def test_requests_behind_an_open_one_do_not_count_yet(table):
    # The request of second 1 is still open at second 5; the quick ones that began after it must wait for it.
    look = Look(3, 5.0, table([0, 2, 3], ttft=[1, 1, 1]), np.array([1.0]))
    judged = judge(look, Slo(ttft_s=10))
    assert judged.start_s.tolist() == [0.0]
    assert judged.horizon_s == 1.0


def test_an_open_request_beyond_its_end_to_end_limit_is_already_a_miss(table):
    look = Look(3, 9.0, table([0, 2, 3], ttft=[1, 1, 1]), np.array([1.0]))
    judged = judge(look, Slo(e2e_s=7.0))
    assert judged.start_s.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert judged.met.tolist() == [True, False, True, True]


def test_an_open_request_that_waits_too_long_for_its_first_token_is_already_a_miss(table):
    first = np.array([np.nan, 0.5, 6.0])
    look = Look(4, 9.0, table([0], ttft=[1]), np.array([1.0, 2.0, 1.5]), pending_ttft_s=first)
    judged = judge(look, Slo(ttft_s=5.0))
    # Second 1: no token after 8 s. Second 1.5: first token after 6 s. Second 2: still open, cuts the horizon.
    assert judged.met.tolist() == [True, False, False]
    assert judged.horizon_s == 2.0


def test_the_commonest_broken_threshold_is_named(table):
    requests = table([0, 1, 2], ttft=[9, 9, 1], tpot=[0.1, 0.1, 0.9])
    assert limiting_factor(requests, Slo(ttft_s=2, tpot_s=0.5)) == "ttft"
    assert limiting_factor(requests, Slo(ttft_s=20)) is None
