"""The same work on many hosts at once: one failure stops no other, and the worst one decides the exit code."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from deployctl.catalog.catalog import Catalog
from deployctl.errors import Cancelled, DeployctlError, UsageError
from deployctl.events import Emit, Event, HostEnded, HostMoved, StepFinished, StepProgress, StepStarted, Warned

R = TypeVar("R")
AT_ONCE = 8
_POLL_S = 0.2


@dataclass(frozen=True)
class HostOutcome(Generic[R]):
    """How the work on one host ended, after ``seconds`` of wall time: with a result or with an error."""

    host: str
    seconds: float
    result: R | None = None
    error: DeployctlError | None = None

    @property
    def exit_code(self) -> int:
        """0, or the code of its error."""
        return 0 if self.error is None else self.error.exit_code


def choose_hosts(catalog: Catalog, limit: str, plan: str | None) -> tuple[str, ...]:
    """Return the names in inventory/hosts.yml that ``limit`` means: names or globs, separated by commas; in its order.

    With a plan only hosts that embody it count, or that name none. Raises UsageError when nothing is left.
    """
    patterns = [part.strip() for part in limit.split(",") if part.strip()]
    names = [
        host.name
        for host in catalog.hosts.values()
        if any(fnmatch.fnmatchcase(host.name, pattern) for pattern in patterns)
        and (plan is None or host.plan in (None, plan))
    ]
    for pattern in patterns:
        if not set("*?[") & set(pattern):
            catalog.host(pattern)  # a name that is not there is an error with the nearest ones
    if not names:
        what = f" of plan {plan}" if plan else ""
        raise UsageError(
            f"--limit {limit} means no host{what} of inventory/hosts.yml", hint="--limit '*' is all of them"
        )
    return tuple(names)


def across(
    hosts: Sequence[str], work: Callable[[str, Emit], R], emit: Emit, *, at_once: int = AT_ONCE
) -> tuple[HostOutcome[R], ...]:
    """Do ``work(host, emit)`` for every host, ``at_once`` at a time, and return how each ended, in the given order.

    Events of the hosts become one line of progress each. Ctrl-C is passed on to every host that is being worked on,
    and those that were not begun are not; their outcome is Cancelled.
    """
    fleet = _Fleet(emit)
    with ThreadPoolExecutor(max_workers=max(1, at_once), thread_name_prefix="host") as pool:
        futures = [pool.submit(fleet.one, host, work) for host in hosts]
        pending = set(futures)
        while pending:
            try:
                _, pending = wait(pending, timeout=_POLL_S)
            except KeyboardInterrupt:
                fleet.stop.set()
    return tuple(future.result() for future in futures)


def worst(outcomes: Sequence[HostOutcome[R]]) -> int:
    """The exit code of the whole."""
    return max((outcome.exit_code for outcome in outcomes), default=0)


class _Fleet:
    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def say(self, event: Event) -> None:
        with self.lock:
            self.emit(event)

    def one(self, host: str, work: Callable[[str, Emit], R]) -> HostOutcome[R]:
        began = time.monotonic()
        result, error = None, None
        try:
            if self.stop.is_set():
                raise Cancelled("cancelled before it was begun")
            result = work(host, self._emit_for(host))
        except DeployctlError as failed:
            error = failed
        except KeyboardInterrupt:
            error = Cancelled("cancelled")
        except Exception as bug:  # noqa: BLE001  one host's surprise must not take the others' work away
            error = DeployctlError(f"internal error: {bug!r}")
        seconds = time.monotonic() - began
        self.say(HostEnded(host, "failed" if error else "done", seconds, error.message if error else ""))
        return HostOutcome(host, seconds, result, error)

    def _emit_for(self, host: str) -> Emit:
        titles: dict[str, str] = {}

        def emit(event: Event) -> None:
            match event:
                case StepStarted(step, title):
                    titles[step] = title
                    self.say(HostMoved(host, title))
                case StepProgress(step, message, current, total, unit):
                    self.say(HostMoved(host, f"{titles.get(step, step)}: {message}", current, total, unit))
                case Warned(message):
                    self.say(Warned(f"{host}: {message}"))
                case _:
                    pass
            if self.stop.is_set() and not isinstance(event, StepFinished):
                raise KeyboardInterrupt

        return emit
