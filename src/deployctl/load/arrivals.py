"""When requests arrive in an open loop: at a constant rate, at random (Poisson), or as a log says. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Literal

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


def read_replay(path: Path, draws: Iterator[Draw], speed: float = 1.0) -> Iterator[Arrival]:
    """Yield the arrivals of a JSON Lines log, ``speed`` times as fast as they came.

    A line has ``arrival_s`` (seconds from any origin, not decreasing), ``output_tokens``, and ``prompt`` (text) or
    ``prompt_tokens`` (a prompt of that length is made). Raises UsageError with file and line.
    """
    first: float | None = None
    last = 0.0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            at_s, output = float(entry["arrival_s"]), int(entry["output_tokens"])
            text = entry.get("prompt")
            prompt = int(entry["prompt_tokens"]) if text is None else 0
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path}:{number}: not an arrival ({error!r})",
                hint='write {"arrival_s": 0.5, "prompt_tokens": 40, "output_tokens": 24}',
            ) from error
        first = at_s if first is None else first
        if at_s < last or output < 1:
            raise UsageError(f"{path}:{number}: arrivals must be in order and ask for at least one token")
        last = at_s
        draw = replace(next(draws), think_s=0.0, prompt_tokens=prompt, output_tokens=output)
        yield Arrival((at_s - first) / speed, draw, text)
