"""When requests arrive in an open loop: at a constant rate, at random (Poisson), or as a log says. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deployctl.errors import UsageError
from deployctl.load.script import Draw

Process = Literal["constant", "poisson"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: its intended start in seconds from the beginning, what it asks, and its text if a log gives one."""

    at_s: float
    draw: Draw
    text: str | None = None


def offsets(process: Process, rate_per_s: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield intended starts in seconds for ever: every 1/rate, or with exponential gaps of that mean."""
    if rate_per_s <= 0:
        raise UsageError(f"an arrival rate must be above 0, not {rate_per_s:g}")
    if process == "constant":
        for index in count():
            yield index / rate_per_s
    at_s = 0.0
    while True:
        for gap in rng.exponential(1 / rate_per_s, 64).tolist():
            at_s += gap
            yield at_s


def arrivals(starts: Iterator[float], draws: Iterator[Draw]) -> Iterator[Arrival]:
    """Yield arrivals of drawn requests."""
    return map(Arrival, starts, draws)


@dataclass(frozen=True, slots=True)
class Logged:
    """One request of a log: seconds since the log's first one, tokens of prompt (0: not said) and answer, its text."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    text: str | None = None


def read_log(path: Path) -> tuple[Logged, ...]:
    """Read a JSON Lines log of requests.

    A line has ``arrival_s`` (seconds from any origin, not decreasing), ``output_tokens``, and ``prompt`` (text) or
    ``prompt_tokens`` (a prompt of that length is made); other keys are ignored. Raises UsageError with file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    found: list[Logged] = []
    first = last = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at_s, prompt, output, text = _entry(f"{path}:{number}", line)
        first = first if found else at_s
        if found and at_s < last:
            raise UsageError(f"{path}:{number}: arrives at {at_s:g} s, before the line above it ({last:g} s)")
        last = at_s
        found.append(Logged(at_s - first, prompt, output, text))
    if not found:
        raise UsageError(f"{path}: holds no request", hint=_EXAMPLE)
    return tuple(found)


def replayed(log: Iterable[Logged], draws: Iterator[Draw], speed: float = 1.0) -> Iterator[Arrival]:
    """Yield the arrivals of a log, ``speed`` times as fast as they came; ``draws`` gives them seeds and texts."""
    for one in log:
        draw = replace(next(draws), think_s=0.0, prompt_tokens=one.prompt_tokens, output_tokens=one.output_tokens)
        yield Arrival(one.at_s / speed, draw, one.text)


_EXAMPLE = 'a line is {"arrival_s": 0.5, "prompt_tokens": 40, "output_tokens": 24}, or has "prompt", the text itself'
_MOST_TOKENS = 10_000_000


def _entry(where: str, line: str) -> tuple[float, int, int, str | None]:
    """Read one line; raises UsageError that begins with ``where``."""
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=_EXAMPLE) from None
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: not a JSON object", hint=_EXAMPLE)
    text = entry.get("prompt")
    if text is not None and not (isinstance(text, str) and text.strip()):
        raise UsageError(f"{where}: 'prompt' is not a text", hint=_EXAMPLE)
    at_s: Any = entry.get("arrival_s")
    if type(at_s) not in (int, float) or not math.isfinite(at_s):
        raise UsageError(f"{where}: 'arrival_s' is {_shown(at_s)}, not a number of seconds", hint=_EXAMPLE)
    prompt = _count(where, entry, "prompt_tokens") if text is None else 0
    return float(at_s), prompt, _count(where, entry, "output_tokens"), text


def _count(where: str, entry: dict[str, Any], name: str) -> int:
    value = entry.get(name)
    if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
        raise UsageError(f"{where}: '{name}' is {_shown(value)}, not a number of tokens", hint=_EXAMPLE)
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else f"{json.dumps(value)[:40]}"
