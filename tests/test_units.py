"""Bytes and seconds as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.units import format_bytes, format_seconds, parse_duration


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (536870912, "512 MiB"),
        (4920734720, "4.6 GiB"),
        (2**37, "128 GiB"),
    ],
)
def test_bytes_are_binary(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0504, "50 ms"), (0.9, "900 ms"), (1, "1.0 s"), (75.04, "75.0 s"), (150, "2 min 30 s"), (5400, "1 h 30 min")],
)
def test_seconds_are_milliseconds_below_one(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: int) -> None:
    total = hours * 3600 + minutes * 60 + seconds
    text = f"{hours}h{minutes}m{seconds}s"
    if total:
        assert parse_duration(text) == total
    else:
        with pytest.raises(ValueError, match="not a usable duration"):
            parse_duration(text)
