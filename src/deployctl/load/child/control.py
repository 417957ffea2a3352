"""Obeys the parent: user counts come on stdin, reports go out on stdout; without a parent this process ends."""

from __future__ import annotations

import os
from time import monotonic
from typing import Any, NoReturn, Protocol

import gevent
from gevent.lock import BoundedSemaphore

from deployctl.load.child.channel import Channel, beside, commands
from deployctl.load.child.recorder import Parcel, Shelf
from deployctl.load.spec import LoadSpec
from deployctl.load.store import finalise
from deployctl.load.wire import encode, encode_report

REPORT_S = 0.25
HEALTH_EVERY = 2
_CUT_WAIT_S = 2.0


class Hands(Protocol):
    """What moves users: those of this process (`local.Local`), or those of workers (`cluster.Cluster`)."""

    def start(self) -> None:
        """Begin."""

    @property
    def ready(self) -> bool:
        """Whether a level may be set."""

    @property
    def users(self) -> int:
        """Users that are running now."""

    @property
    def arriving(self) -> bool:
        """Whether an open loop runs."""

    def think(self, on: bool) -> None:
        """Leave think times in, or out."""

    def ramp(self, users: int) -> None:
        """Return when the users are running, or have gone."""

    def arrive(self, command: dict[str, Any]) -> float:
        """Begin an open loop."""

    def halt(self) -> None:
        """End an open loop."""

    def cut(self) -> None:
        """End every open request."""

    def settle(self) -> None:
        """Return when all that has happened is in the next `news`."""

    def machines(self) -> list[dict[str, Any]]:
        """Return the other machines that generate load, as `wire.Machine` has them."""

    def news(self, *, health: bool) -> list[Parcel]:
        """Return what is new."""


class Control:
    """Sets levels as the parent asks, reports, writes samples to disk."""

    def __init__(self, hands: Hands, spec: LoadSpec, channel: Channel, shelf: Shelf) -> None:
        self._hands = hands
        self._spec = spec
        self._channel = channel
        self._shelf = shelf
        self._holding: Any = None
        self._draining = False
        self._reporting = BoundedSemaphore()
        self._threads = gevent.get_hub().threadpool

    def start(self) -> None:
        """Begin to listen and to report."""
        self._hands.start()
        beside(self._report)
        beside(self._listen)
        beside(self._ready)

    def _ready(self) -> None:
        while not self._hands.ready:
            gevent.sleep(0.02)
        self._channel.send(encode({"event": "ready", "t": monotonic()}))

    def _listen(self) -> NoReturn:
        for command in commands():
            match command["cmd"]:
                case "cut":
                    self._hands.cut()
                case "stop":
                    beside(self._end)
                case _:
                    if self._holding is not None:
                        self._holding.kill()
                    self._holding = beside(self._hold, command)
        self._leave()

    def _leave(self) -> NoReturn:
        """The parent is gone: keep what is finished, and go."""
        self._reporting.acquire(timeout=_CUT_WAIT_S)
        for parcel in self._hands.news(health=False):
            self._shelf.add(parcel.report.samples, parcel.reads)
        self._shelf.close()
        os._exit(0)

    def _report(self) -> NoReturn:
        parent = os.getppid()
        rounds = 0
        while True:
            gevent.sleep(REPORT_S)
            rounds += 1
            if os.getppid() != parent:
                self._leave()
            self._tell(health=rounds % HEALTH_EVERY == 0)

    def _tell(self, *, health: bool = False) -> None:
        """Send what is new, and write it when a batch is full; the costly part runs in a thread beside the loop."""
        with self._reporting:
            for parcel in self._hands.news(health=health):
                if not parcel.report.empty:
                    self._channel.send(self._threads.apply(encode_report, (parcel.report,)))
                self._shelf.add(parcel.report.samples, parcel.reads)
            if self._shelf.due:
                self._threads.apply(self._shelf.write)

    def _hold(self, command: dict[str, Any]) -> None:
        users = int(command.get("n", 0))
        arriving = command["cmd"] != "users"
        if users < self._hands.users or arriving or self._draining or self._hands.arriving or not users:
            # Fewer users: all finish their open request and leave, then the new ones come. So every level starts alike.
            self._draining = True
            self._hands.halt()
            self._hands.ramp(0)
            self._hands.settle()
            self._draining = False
        self._hands.think(bool(command.get("think", True)))
        began = monotonic()
        if arriving:
            began = self._hands.arrive(command)
        elif users:
            self._hands.ramp(users)
        self._tell()
        if machines := self._hands.machines():
            self._channel.send(encode({"event": "machines", "rows": machines}))
        level = {"event": "level", "t": monotonic(), "began": began, "users": users}
        self._channel.send(encode(level | {"rate": command.get("per_s", 0.0)}))

    def _end(self) -> None:
        if self._holding is not None:
            self._holding.kill()
        self._hands.cut()
        beside(self._empty).join(timeout=_CUT_WAIT_S)
        self._tell()
        self._reporting.acquire()
        self._shelf.close()
        samples = self._spec.samples
        if samples is not None:
            finalise([samples], samples.with_suffix(".parquet"))
        self._channel.send(encode({"event": "bye", "t": monotonic()}))
        self._channel.flush()
        os._exit(0)

    def _empty(self) -> None:
        self._hands.halt()
        self._hands.ramp(0)
        self._hands.settle()
