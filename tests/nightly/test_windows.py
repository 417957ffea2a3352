"""Windows through changes of the clock. Moments are written down from the zones' published rules."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deployctl.nightly.windows import Window, existing


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def wall(*parts: int) -> datetime:
    """What a clock on the wall shows."""
    return datetime(*parts)  # type: ignore[arg-type,misc]  # noqa: DTZ001


def window(begin: str, to: str, zone: str = "UTC", **more: object) -> Window:
    return Window.model_validate({"from": begin, "to": to, "timezone": zone, **more})


def test_a_window_past_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = window("22:00", "06:00", days=["fri"])
    assert night.span(utc(2026, 5, 1, 23)) == (utc(2026, 5, 1, 22), utc(2026, 5, 2, 6))  # a Friday
    assert night.span(utc(2026, 5, 2, 5, 59)) is not None
    assert night.span(utc(2026, 5, 2, 6)) is None
    assert night.span(utc(2026, 5, 2, 23)) is None
    assert night.next_begin(utc(2026, 5, 2)) == utc(2026, 5, 8, 22)


def test_a_zone_without_summer_time_keeps_its_offset() -> None:
    # Mexico City has been at UTC-6 the whole year since the law of October 2022.
    for month in (1, 7):
        begin, end = window("22:00", "06:00", "America/Mexico_City").span(utc(2026, month, 15, 5)) or (None, None)
        assert (begin, end) == (utc(2026, month, 15, 4), utc(2026, month, 15, 12))


def test_the_night_of_the_spring_change_is_an_hour_shorter_and_of_the_autumn_change_longer() -> None:
    # Madrid, 2026: clocks go forward on 29 March at 01:00 UTC and back on 25 October at 01:00 UTC.
    night = window("22:00", "06:00", "Europe/Madrid")
    spring = night.span(utc(2026, 3, 29, 0))
    assert spring == (utc(2026, 3, 28, 21), utc(2026, 3, 29, 4))
    autumn = night.span(utc(2026, 10, 25, 0))
    assert autumn == (utc(2026, 10, 24, 20), utc(2026, 10, 25, 5))


def test_a_time_that_the_clock_skips_is_the_moment_of_the_change() -> None:
    madrid = ZoneInfo("Europe/Madrid")
    assert existing(wall(2026, 3, 29, 2, 30), madrid) == utc(2026, 3, 29, 1)
    assert window("02:30", "05:00", "Europe/Madrid").span(utc(2026, 3, 29, 1)) == (
        utc(2026, 3, 29, 1),
        utc(2026, 3, 29, 3),
    )


def test_a_time_that_comes_twice_begins_at_the_first_and_ends_at_the_second() -> None:
    madrid = ZoneInfo("Europe/Madrid")
    assert existing(wall(2026, 10, 25, 2, 30), madrid) == utc(2026, 10, 25, 0, 30)
    assert existing(wall(2026, 10, 25, 2, 30), madrid, last=True) == utc(2026, 10, 25, 1, 30)


def test_a_change_by_half_an_hour() -> None:
    # Lord Howe Island: back by 30 minutes on 5 April 2026 at 15:00 UTC of the 4th (02:00 local becomes 01:30).
    island = ZoneInfo("Australia/Lord_Howe")
    assert existing(wall(2026, 4, 5, 1, 45), island) == utc(2026, 4, 4, 14, 45)
    assert existing(wall(2026, 4, 5, 1, 45), island, last=True) == utc(2026, 4, 4, 15, 15)


@given(
    st.datetimes(wall(2024, 1, 1), wall(2028, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(
        ["Europe/Madrid", "America/Mexico_City", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
    ),
    st.times(),
    st.times(),
)
def test_a_span_holds_its_moment_and_the_next_begin_starts_one(moment, zone, begin, to) -> None:  # type: ignore[no-untyped-def]
    made = window(f"{begin:%H:%M}", f"{to:%H:%M}", zone)
    span = made.span(moment)
    if span is not None:
        assert span[0] <= moment < span[1]
    upcoming = made.next_begin(moment)
    assert upcoming is not None
    assert upcoming > moment
    inside = made.span(upcoming)
    # A window that lies within a gap of the clock has no length, and so nothing is in it.
    assert inside is None or inside[0] <= upcoming < inside[1]


@pytest.mark.parametrize(
    "bad", [{"from": "25:00"}, {"from": "9:00pm"}, {"to": "1:00:00"}, {"timezone": "Mars/Base"}, {"days": ["lun"]}]
)
def test_what_is_no_time_zone_or_day_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Window.model_validate(bad)
