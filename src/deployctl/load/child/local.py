"""Moves the users of this one process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from itertools import islice
from time import monotonic
from typing import Any

from deployctl.load.arrivals import Arrival, arrivals, offsets, replayed
from deployctl.load.child.ask import Session
from deployctl.load.child.channel import beside
from deployctl.load.child.health import Watch
from deployctl.load.child.openloop import OpenLoop
from deployctl.load.child.recorder import Parcel
from deployctl.load.script import draws, generator
from deployctl.load.wire import Health

DRAIN_FOREVER_S = 86_400
"""Locust's stop timeout: open requests end by themselves, or by their own timeout, or because they are cut."""

_ARRIVALS_KEY = 2**32  # streams of random numbers that no user has
# A full collection stops a thousand streams for some 8 ms. Requests leave no cycles behind, so it can wait for a drain.
_GC_THRESHOLDS = (100_000, 50, 1000)
_SWITCH_S = 0.0001  # how long a writing thread may keep the event loop from the interpreter


class Local:
    """The users, arrivals and health of this process."""

    def __init__(self, environment: Any, session: Session, index: int = 0) -> None:
        self.session = session
        self._environment = environment
        self._index = index
        self._watch = Watch()
        self._open_loop = OpenLoop(session)
        environment.stop_timeout = DRAIN_FOREVER_S
        sys.setswitchinterval(_SWITCH_S)

    def start(self) -> None:
        """Begin to watch; call it when everything is loaded."""
        gc.collect()
        gc.freeze()  # what Locust has loaded lives for ever; searching it for garbage would stall the loop
        gc.set_threshold(*_GC_THRESHOLDS)
        beside(self._watch.run)

    @property
    def ready(self) -> bool:
        """Whether a level may be set."""
        return True

    @property
    def users(self) -> int:
        """Users that are running now."""
        return int(self._environment.runner.user_count)

    @property
    def arriving(self) -> bool:
        """Whether arrivals are still to come, or their requests open."""
        return self._open_loop.running

    def think(self, on: bool) -> None:
        """Leave think times in, or out."""
        self.session.think = on

    def ramp(self, users: int) -> None:
        """Return when ``users`` users are running; fewer than before: when the others have ended their request."""
        runner = self._environment.runner
        runner.start(users, max(1, users, runner.user_count))
        runner.spawning_greenlet.join()

    def arrive(self, command: dict[str, Any]) -> float:
        """Begin the arrivals of a ``rate`` or ``replay`` command; returns when they began.

        ``share`` (i, n) makes this process one of n: it takes every n-th arrival of a schedule that all of them share,
        or a Poisson process of 1/n of the rate (n of which together are one of the whole rate).
        """
        begin = float(command.get("begin", monotonic()))
        self._open_loop.start(self._arrivals(command), begin)
        return begin

    def halt(self) -> None:
        """Let nothing more arrive and wait until all that has arrived is answered; then there is time to tidy up."""
        self._open_loop.stop()
        gc.collect()

    def cut(self) -> None:
        """End every open request."""
        self.session.recorder.cut()

    def settle(self) -> None:
        """Return when all that has happened is in the next `news`."""

    def machines(self) -> list[dict[str, Any]]:
        """Return no other machine."""
        return []

    def news(self, *, health: bool) -> list[Parcel]:
        """Return what is new."""
        report: Health | None = None
        if health:
            report = self._watch.report(self.users, len(self.session.recorder.live), self._index)
        return [self.session.recorder.collect(report, self._index)]

    def _arrivals(self, command: dict[str, Any]) -> Iterator[Arrival]:
        spec = self.session.spec
        part, parts = command.get("share", (0, 1))
        rng = generator(spec.seed, _ARRIVALS_KEY + next(self.session.numbers))
        drawn = draws(spec.workload, rng)
        if command["cmd"] == "replay":
            return replayed(self.session.log[part::parts], drawn, spec.speed)
        if command["process"] == "poisson":
            return arrivals(offsets("poisson", command["per_s"] / parts, rng), drawn)
        return arrivals(islice(offsets("constant", command["per_s"], rng), part, None, parts), drawn)
