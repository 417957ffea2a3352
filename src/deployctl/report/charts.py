"""The charts of a report, drawn from the probes: attainment with its intervals, latencies, tokens per second."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from deployctl.records.parts import Percentiles, Probe
from deployctl.records.schema import Record
from deployctl.report import words
from deployctl.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    drawing,
    element,
    frame,
    linear,
    logarithmic,
    round_step,
    spread,
)

_USERS = "concurrent users"
_FLOOR = HEIGHT - BOTTOM
_SIDE = 44  # room at the right for the names of the lines


def attainment(record: Record) -> Markup | None:
    """Draw the attainment of every probe with its interval and the SLO's target; None when there is nothing to draw."""
    probes = [probe for probe in record.probes if probe.attainment is not None]
    if not probes:
        return None
    right = float(WIDTH - RIGHT)
    lowest = min(min(probe.attainment or 0, *_bounds(probe)) for probe in probes)
    lowest = min(lowest, record.slo.attainment)
    step = round_step(max(1 - lowest, 0.02) / 5)
    bottom = max(0.0, round(lowest / step - 0.5) * step)
    x = _users_scale(probes, right)
    y = linear(bottom, 1.0, _FLOOR, TOP, words.percent)
    target = y.place(record.slo.attainment)
    parts = [_undecided(record, x, right), frame(x, y, x_title=_USERS)]
    parts.append(element("line", class_="target", x1=LEFT, x2=right, y1=target, y2=target))
    seen: dict[int, int] = {}
    for probe in probes:
        nth = seen[probe.users] = seen.get(probe.users, 0) + 1
        parts.append(_point(probe, x.place(probe.users) + 9 * (nth - 1), y))
    said = "; ".join(f"{words.users(p.users)}: {words.percent(p.attainment or 0)} ({p.verdict})" for p in probes)
    return drawing(parts, f"Attainment by users, target {words.percent(record.slo.attainment)}. {said}")


def ttft(record: Record) -> Markup | None:
    """Draw the percentiles of the time to first token by users; None with fewer than two valid levels."""
    return _latencies(record, "Time to first token", lambda probe: probe.ttft_s, record.slo.ttft_s)


def tpot(record: Record) -> Markup | None:
    """Draw the percentiles of the time per output token by users; None with fewer than two valid levels."""
    return _latencies(record, "Time per output token", lambda probe: probe.tpot_s, record.slo.tpot_s)


def throughput(record: Record) -> Markup | None:
    """Draw the tokens per second of all users together; None with fewer than two valid levels."""
    probes = [probe for probe in _levels(record) if probe.tokens_per_s is not None]
    if len(probes) < 2:
        return None
    right = float(WIDTH - RIGHT)
    x = _users_scale(probes, right)
    top = max(max(probe.tokens_per_s or 0 for probe in probes), 0.1) * 1.08
    y = linear(0, top, _FLOOR, TOP, lambda value: f"{value:,g}" if value >= 1 or value == 0 else f"{value:.2g}")
    points = [(x.place(probe.users), y.place(probe.tokens_per_s or 0)) for probe in probes]
    dots = [
        _dot(at, "p50", f"{words.users(probe.users)}: {probe.tokens_per_s or 0:,.1f} tokens/s")
        for at, probe in zip(points, probes, strict=True)
    ]
    parts = [frame(x, y, x_title=_USERS), _line(points, "p50"), *dots]
    said = "; ".join(f"{words.users(p.users)}: {p.tokens_per_s or 0:,.1f}" for p in probes)
    return drawing(parts, f"Tokens per second of all users together. {said}")


def _latencies(
    record: Record, title: str, read: Callable[[Probe], Percentiles | None], threshold: float | None
) -> Markup | None:
    levels = [(probe, block) for probe in _levels(record) if (block := read(probe)) is not None]
    finite = [v for _, block in levels for v in (block.p50, block.p95, block.p99) if v is not None and v > 0]
    if len(levels) < 2 or not finite:
        return None
    right = float(WIDTH - RIGHT - _SIDE)
    x = _users_scale([probe for probe, _ in levels], right)
    y = _seconds_scale([*finite, *([threshold] if threshold else [])])
    parts = [frame(x, y, x_title=_USERS, right=right)]
    if threshold is not None:
        at = y.place(threshold)
        parts.append(element("line", class_="target", x1=LEFT, x2=right, y1=at, y2=at))
        parts.append(element("text", f"SLO {words.latency(threshold)}", class_="note", x=LEFT + 4, y=at - 5))
    ends: list[tuple[float, str]] = []
    for name in ("p50", "p95", "p99"):
        values: list[float | None] = [getattr(block, name) for _, block in levels]
        points = [
            (x.place(probe.users), float(TOP) if value is None else y.place(max(value, min(finite))))
            for (probe, _), value in zip(levels, values, strict=True)
        ]
        parts.append(_line(points, name))
        for at_point, (probe, _), value in zip(points, levels, values, strict=True):
            said = f"{words.users(probe.users)}: {name} {words.latency(value)}"
            parts.append(_infinite(at_point, name, said) if value is None else _dot(at_point, name, said))
        ends.append((points[-1][1], name))
    ends.sort()
    for at, (_, name) in zip(spread([end for end, _ in ends], 13, TOP, _FLOOR), ends, strict=True):
        parts.append(element("text", name, class_=f"name {name}", x=right + 9, y=at + 4))
    said = "; ".join(
        f"{words.users(probe.users)}: {words.latency(b.p50)}, {words.latency(b.p95)}, {words.latency(b.p99)}"
        for probe, b in levels
    )
    return drawing(parts, f"{title} by concurrent users, p50, p95 and p99. {said}")


def _levels(record: Record) -> list[Probe]:
    """One valid probe per number of users (the one with most requests), by users."""
    best: dict[int, Probe] = {}
    for probe in record.probes:
        known = best.get(probe.users)
        if probe.verdict != "invalid" and (known is None or probe.requests > known.requests):
            best[probe.users] = probe
    return [best[users] for users in sorted(best)]


def _users_scale(probes: Sequence[Probe], right: float) -> Scale:
    most = max(probe.users for probe in probes)
    raw = linear(0, most * 1.06, LEFT, right, lambda value: f"{value:,.0f}", most=7)
    return Scale(raw.place, tuple((value, label) for value, label in raw.ticks if value == round(value)))


def _seconds_scale(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    if high / low > 20:
        return logarithmic(low * 0.8, high * 1.25, _FLOOR, TOP, _short)
    return linear(0, high * 1.12, _FLOOR, TOP, _short)


def _short(seconds: float) -> str:
    return "0" if seconds == 0 else f"{seconds * 1000:,.3g} ms" if seconds < 1 else f"{seconds:,.4g} s"


def _bounds(probe: Probe) -> tuple[float, float]:
    seen = probe.attainment or 0.0
    low = probe.attainment_low if probe.attainment_low is not None else seen
    return low, probe.attainment_high if probe.attainment_high is not None else seen


def _undecided(record: Record, x: Scale, right: float) -> Markup:
    """The certified level as a line, and the levels above it that were not decided as a band."""
    block = record.capacity
    if block.status not in ("certified", "at_least"):
        return Markup("")
    start = x.place(block.certified_users)
    parts = []
    if block.at_most_users is not None and block.at_most_users > block.certified_users:
        end = min(x.place(block.at_most_users), right)
        parts.append(element("rect", class_="band", x=start, y=TOP, width=max(end - start, 0.0), height=_FLOOR - TOP))
    parts.append(element("line", class_="certified", x1=start, x2=start, y1=TOP, y2=_FLOOR))
    return Markup("").join(parts)


def _point(probe: Probe, at: float, y: Scale) -> Markup:
    low, high = (y.place(bound) for bound in _bounds(probe))
    middle = y.place(probe.attainment or 0)
    bars = [
        element("line", x1=at, x2=at, y1=low, y2=high),
        *(element("line", x1=at - 4, x2=at + 4, y1=end, y2=end) for end in (low, high)),
    ]
    said = f"{words.users(probe.users)}: {words.percent(probe.attainment or 0)}"
    said += f" ({words.interval(probe.attainment_low, probe.attainment_high) or 'no interval'}), {probe.verdict}"
    return element(
        "g", Markup("").join([element("title", said), *bars, _mark(probe.verdict, at, middle)]), class_=probe.verdict
    )


def _mark(verdict: str, x: float, y: float) -> Markup:
    """A shape per verdict, so that colour is not needed to tell them apart."""
    if verdict == "pass":
        return element("circle", class_="mark", cx=x, cy=y, r=5)
    if verdict == "fail":
        return element("path", class_="cross", d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10")
    if verdict == "inconclusive":
        return element("path", class_="mark", d=f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z")
    return element("rect", class_="hollow", x=x - 4.5, y=y - 4.5, width=9, height=9)


def _line(points: Sequence[tuple[float, float]], name: str) -> Markup:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", class_=f"line {name}", points=path)


def _dot(at: tuple[float, float], name: str, said: str) -> Markup:
    return element("circle", element("title", said), class_=f"dot {name}", cx=at[0], cy=at[1], r=3)


def _infinite(at: tuple[float, float], name: str, said: str) -> Markup:
    sign = Markup("").join([element("title", said), "∞"])
    return element("text", sign, class_=f"name {name} infinite", x=at[0], y=at[1] + 6, text_anchor="middle")
