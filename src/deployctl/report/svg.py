"""The least SVG that our charts need: escaped elements, and axes with round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 400, 250  # small on purpose: scaled to a phone's width, 12 units of text stay readable
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 16, 40


def element(name: str, content: Markup | str = "", **attributes: str | float) -> Markup:
    """Return ``<name …>content</name>``; ``content`` that is not Markup is escaped, and so is every attribute.

    Underscores in attribute names become hyphens; a trailing one is dropped (``class_``). Numbers get one decimal.
    """
    pairs = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, pairs, content)


@dataclass(frozen=True)
class Scale:
    """A mapping of values to positions, with the ticks to draw: pairs of a value and its label."""

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]


def linear(low: float, high: float, start: float, end: float, label: Callable[[float], str], most: int = 6) -> Scale:
    """Return a linear scale of ``low``…``high`` onto ``start``…``end`` with at most ``most`` round ticks."""
    step = round_step((high - low) / most)
    first = math.ceil(round(low / step, 9))
    last = math.floor(round(high / step, 9))
    ticks = tuple((number * step, label(number * step)) for number in range(first, last + 1))
    return Scale(lambda value: start + (value - low) / (high - low) * (end - start), ticks)


def logarithmic(low: float, high: float, start: float, end: float, label: Callable[[float], str]) -> Scale:
    """Return a logarithmic scale with ticks at 1, 2 and 5 times the powers of ten (powers only, when crowded)."""
    bottom, top = math.log10(low), math.log10(high)
    exponents = range(math.floor(bottom), math.ceil(top) + 1)
    values = [factor * 10.0**power for power in exponents for factor in (1, 2, 5)]
    values = [value for value in values if low * 0.999 <= value <= high * 1.001]
    if len(values) > 7:
        values = [value for value in values if abs(math.log10(value) - round(math.log10(value))) < 1e-9]
    ticks = tuple((value, label(value)) for value in values)
    return Scale(lambda value: start + (math.log10(value) - bottom) / (top - bottom) * (end - start), ticks)


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 × 10ⁿ that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions near ``wanted`` (ascending), at least ``gap`` apart, within ``low``…``high`` where they fit."""
    placed: list[float] = []
    for position in wanted:
        placed.append(max(position, placed[-1] + gap) if placed else max(position, low))
    limit = high
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


def frame(x: Scale, y: Scale, *, x_title: str, right: float = WIDTH - RIGHT) -> Markup:
    """Return the grid, the tick labels and the title of the horizontal axis."""
    bottom = HEIGHT - BOTTOM
    parts = []
    for value, label in y.ticks:
        at = y.place(value)
        parts.append(element("line", class_="grid", x1=LEFT, x2=right, y1=at, y2=at))
        parts.append(element("text", label, class_="tick", x=LEFT - 6, y=at + 4, text_anchor="end"))
    for value, label in x.ticks:
        parts.append(element("text", label, class_="tick", x=x.place(value), y=bottom + 16, text_anchor="middle"))
    parts.append(element("line", class_="axis", x1=LEFT, x2=right, y1=bottom, y2=bottom))
    middle = (LEFT + right) / 2
    parts.append(element("text", x_title, class_="tick", x=middle, y=HEIGHT - 6, text_anchor="middle"))
    return Markup("").join(parts)


def drawing(parts: Sequence[Markup], description: str) -> Markup:
    """Return the whole chart; ``description`` is what a screen reader says."""
    return element(
        "svg",
        Markup("").join(parts),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=description,
        preserveAspectRatio="xMidYMid meet",
    )
