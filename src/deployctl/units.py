"""Bytes, seconds and rates as people read them: GiB and MiB; milliseconds under one second."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_DURATION = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?")


def format_bytes(size: float) -> str:
    """Render a size in bytes as GiB, MiB or KiB, with three significant digits or so."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            value = size / unit
            return f"{value:.0f} {name}" if abs(value) >= 100 else f"{value:.1f} {name}"
    return f"{size:.0f} B"


def format_rate(rate: float) -> str:
    """Render a rate with three significant digits, or as a whole number from 1,000 on."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


def format_seconds(seconds: float) -> str:
    """Render a duration: milliseconds under one second, then seconds, minutes and hours."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {secs:02d} s"


def parse_duration(text: str) -> float:
    """Read ``90s``, ``2m``, ``1h30m`` or a bare number of seconds; raises ValueError otherwise. Returns seconds."""
    cleaned = text.strip().lower()
    try:
        seconds = float(cleaned)
    except ValueError:
        match = _DURATION.fullmatch(cleaned)
        if not cleaned or match is None:
            raise ValueError(f"not a duration: {text!r} (write 90s, 2m or 1h30m)") from None
        parts = {key: float(value or 0) for key, value in match.groupdict().items()}
        seconds = parts["h"] * 3600 + parts["m"] * 60 + parts["s"]
    if not 0 < seconds < 1e7:
        raise ValueError(f"not a usable duration: {text!r}")
    return seconds
