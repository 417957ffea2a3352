"""Judging the client, by hand computation."""

import math
from dataclasses import replace

import pytest

from deployctl.load.clientside import ClientLimits, ClientState, client_bound, littles_residual, measure
from deployctl.load.samples import Sample
from deployctl.load.wire import Health, Open


def cycle(user, seq, begin, think, delay, service):
    intended = begin + think
    sent = intended + delay
    return Sample(user, seq, intended, sent_s=sent, end_s=sent + service, think_s=think)


def test_a_client_on_time_leaves_no_residual():
    # One user over 10 s: think 1, wait 4, think 1, wait 4.
    samples = [cycle(0, 0, 0.0, 1, 0, 4), cycle(0, 1, 5.0, 1, 0, 4)]
    assert littles_residual(1, (0.0, 10.0), samples, [], {}) == pytest.approx(0)


def test_time_lost_by_a_late_client_is_the_residual():
    # One user over 10 s, each request sent half a second late: 1 of 10 s is lost.
    samples = [cycle(0, 0, 0.0, 1, 0.5, 3.5), cycle(0, 1, 5.0, 1, 0.5, 3.5)]
    assert littles_residual(1, (0.0, 10.0), samples, [], {}) == pytest.approx(0.1)


def test_open_requests_and_present_think_times_count():
    # User 0 has been waiting since 2 (after thinking since 0); user 1 thinks from 0 until 20; the window ends at 10.
    assert littles_residual(2, (0.0, 10.0), [], [Open(0, 0, 2.0)], {1: 20.0}) == pytest.approx(0)


def test_a_user_that_does_not_run_is_missed():
    samples = [cycle(0, 0, 0.0, 1, 0, 4), cycle(0, 1, 5.0, 1, 0, 4)]
    assert littles_residual(2, (0.0, 10.0), samples, [], {}) == pytest.approx(0.5)


def test_a_user_that_overslept_is_missed():
    # It should have started at 4, and is neither open nor ended at 10.
    assert littles_residual(1, (0.0, 10.0), [], [], {0: 4.0}) == pytest.approx(0.6)


def test_measured_quantities_are_those_of_the_reports():
    health = [Health(1.0, (0.0,) * 98 + (0.2, 0.2), 0.2, 1000, 1, 0), Health(2.0, (), 0.4, 3000, 1, 0)]
    state = measure(1, (0.0, 10.0), [cycle(0, 0, 0.0, 1, 0.25, 8.75)], [], {}, health)
    assert state.cpu_share == pytest.approx(0.3)
    assert state.rss_bytes == 3000
    assert state.schedule_delay_p99_s == pytest.approx(0.25)
    assert 0 < state.loop_lag_p99_s <= 0.2


def test_each_limit_trips_by_itself_with_its_figure():
    fine = ClientState(0.001, 0.001, 0.1, 0.001, 0)
    limits = ClientLimits(loop_lag_p99_s=0.05, schedule_delay_p99_s=0.05, cpu_share=0.9, residual=0.05)
    assert client_bound(fine, limits) == ()
    for name, value, text in (
        ("loop_lag_p99_s", 0.08, "event-loop lag p99 80 ms > 50 ms"),
        ("schedule_delay_p99_s", 0.3, "schedule delay p99 300 ms"),
        ("cpu_share", 0.97, "CPU of the load process 97 % > 90 %"),
        ("residual", 0.2, "Little's-law residual 20 % > 5 %"),
    ):
        state = replace(fine, **{name: value})
        (reason,) = client_bound(state, limits)
        assert reason.startswith("client-bound: ")
        assert text in reason


def test_nothing_measured_trips_nothing():
    assert client_bound(ClientState(math.nan, math.nan, math.nan, math.nan, 0), ClientLimits()) == ()
