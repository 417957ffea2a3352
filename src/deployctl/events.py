"""What a job tells its faces while it runs. Faces render events; they decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Literal

Outcome = Literal["done", "skipped", "failed"]


@dataclass(frozen=True)
class StepStarted:
    """A step of the job begins. ``step`` is its short name, ``title`` a phrase for people."""

    step: str
    title: str


@dataclass(frozen=True)
class StepProgress:
    """The running step moved on: ``current`` of ``total`` in ``unit`` (bytes, tasks, requests), where countable."""

    step: str
    message: str
    current: float | None = None
    total: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class StepFinished:
    """The step ended after ``seconds`` of wall time."""

    step: str
    outcome: Outcome
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Warned:
    """Something that the user should know and that does not stop the run."""

    message: str


@dataclass(frozen=True)
class ProbeMoved:
    """A running probe: requests seen so far and the attainment with its current bounds (fractions of 1)."""

    users: int
    requests: int
    attainment: float
    low: float
    high: float
    elapsed_s: float


@dataclass(frozen=True)
class ProbeEnded:
    """A probe's verdict, as soon as it is known."""

    users: int
    verdict: str
    requests: int
    attainment: float
    low: float
    high: float
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class HostMoved:
    """One of several hosts that are worked on at once moved on; the figures are those of StepProgress."""

    host: str
    message: str
    current: float | None = None
    total: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class HostEnded:
    """The work on one of several hosts ended after ``seconds`` of wall time; ``detail`` says why it failed."""

    host: str
    outcome: Outcome
    seconds: float
    detail: str = ""


Event = StepStarted | StepProgress | StepFinished | Warned | ProbeMoved | ProbeEnded | HostMoved | HostEnded
Emit = Callable[[Event], None]


def discard(event: Event) -> None:
    """Swallow an event; the default of everything that takes an ``Emit``."""
    del event


class Step:
    """The running step, handed to the body of ``step(...)``: report progress, or set how it ended."""

    def __init__(self, name: str, emit: Emit) -> None:
        self.name = name
        self.outcome: Outcome = "done"
        self.detail = ""
        self.seconds = 0.0
        self._emit = emit

    def progress(self, message: str, current: float | None = None, total: float | None = None, unit: str = "") -> None:
        """Say how far the step has come."""
        self._emit(StepProgress(self.name, message, current, total, unit))

    def skip(self, detail: str) -> None:
        """Mark that there was nothing to do, and why."""
        self.outcome, self.detail = "skipped", detail


@contextmanager
def step(emit: Emit, name: str, title: str) -> Iterator[Step]:
    """Bracket one step of a job with events and time it; a raised error marks it failed and passes on."""
    current = Step(name, emit)
    began = monotonic()
    emit(StepStarted(name, title))
    try:
        yield current
    except BaseException:
        current.outcome = "failed"
        raise
    finally:
        current.seconds = monotonic() - began
        emit(StepFinished(name, current.outcome, current.seconds, current.detail))
