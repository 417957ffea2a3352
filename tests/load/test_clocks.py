"""Another machine's clock, by arithmetic."""

import pytest

from deployctl.load.clocks import Clock

# Over there the monotonic clock reads 900 s less, and the wall clock is 2.5 s ahead.
THERE_S, AHEAD_S = -900.0, 2.5
OURS = 1_000_000.0  # our wall clock minus our monotonic one


def exchange(clock, sent, there, held, back):
    """We send at ``sent``; it takes ``there`` to arrive, is held, and takes ``back`` to return."""
    received = sent + there + THERE_S
    now = sent + there + held + back
    wall = (now + OURS + AHEAD_S) - (now + THERE_S)
    clock.saw((sent, received), held, wall, (now, now + OURS))


def test_a_way_that_is_as_long_back_as_there_shows_the_clocks_exactly():
    clock = Clock("lg", 0.01)
    assert not clock.known
    assert clock.offset_s == 0
    exchange(clock, 5000.0, 0.02, 0.25, 0.02)
    told = clock.told()
    assert clock.offset_s == pytest.approx(-THERE_S)
    assert (told.name, told.way_s) == ("lg", 0.01)
    assert (told.clock_s, told.clock_error_s) == (pytest.approx(AHEAD_S), pytest.approx(0.02))


def test_of_many_exchanges_the_quickest_counts_and_its_error_is_within_half_of_it():
    clock = Clock("lg", 0.01)
    for there, back in ((0.3, 0.01), (0.004, 0.001), (0.01, 0.2)):
        exchange(clock, 5000.0, there, 0.1, back)
    told = clock.told()
    assert told.clock_error_s == pytest.approx(0.0025)
    assert abs(told.clock_s - AHEAD_S) <= told.clock_error_s
    assert abs(clock.offset_s + THERE_S) <= told.clock_error_s


def test_an_exchange_of_long_ago_is_forgotten():
    clock = Clock("lg", 0.01)
    exchange(clock, 0.0, 0.001, 0.1, 0.001)
    for at in range(240):
        exchange(clock, 5000.0 + at, 0.02, 0.1, 0.02)
    assert clock.told().clock_error_s == pytest.approx(0.02)
