"""Moves the users of Locust's workers, and gathers what they report: the master's half of a distributed run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from time import monotonic, time
from typing import Any

import gevent
import numpy as np

from deployctl.load.child.local import DRAIN_FOREVER_S
from deployctl.load.child.recorder import Parcel
from deployctl.load.child.worker import COMMAND, REPORT, boot_id
from deployctl.load.clocks import Clock
from deployctl.load.store import Reads
from deployctl.load.wire import Machine, decode_report, parse, shifted

_SETTLE_S = 30.0
_LEAD_S = 0.1  # so that every worker knows of a common schedule before it begins


class Cluster:
    """All workers as one pair of hands.

    Each worker reports in its own monotonic time. On the machine of the master that is the master's time as well (the
    boot id tells); elsewhere the offset is estimated from the quickest of its round trips (Cristian, Probabilistic
    clock synchronization, 1989) and added to whole samples, so that durations stay those of one clock.
    """

    def __init__(self, environment: Any, workers: int) -> None:
        self._environment = environment
        self._workers = workers
        self._parcels: list[Parcel] = []
        self._heard: dict[int, float] = {}
        self._open: dict[int, int] = defaultdict(int)
        self._clocks: dict[int, Clock] = {}
        self._arriving = False
        environment.stop_timeout = DRAIN_FOREVER_S
        environment.runner.register_message(REPORT, self._take)

    def start(self) -> None:
        """Nothing to begin: workers report by themselves."""

    @property
    def ready(self) -> bool:
        """Whether every worker has connected and reported, its clock is known, and Locust has finished its start."""
        heard = len(self._heard) >= self._workers and all(clock.known for clock in self._clocks.values())
        return heard and bool(self._environment.runner.spawning_completed)

    @property
    def users(self) -> int:
        """Users that are running now."""
        return int(self._environment.runner.user_count)

    @property
    def arriving(self) -> bool:
        """Whether an open loop runs."""
        return self._arriving

    def think(self, on: bool) -> None:
        """Leave think times in, or out."""
        self._send({"cmd": "think", "on": on})

    def ramp(self, users: int) -> None:
        """Return when the workers say that so many users are running."""
        runner = self._environment.runner
        runner.start(users, max(1, users, runner.user_count))
        while runner.user_count != users:
            gevent.sleep(0.01)

    def arrive(self, command: dict[str, Any]) -> float:
        """Begin an open loop; every worker has a share of it."""
        begin = monotonic() + _LEAD_S
        self._arriving = True
        for client in self._environment.runner.clients.all:
            index = self._environment.runner.get_worker_index(client.id)
            mine = {**command, "share": [index, self._workers], "begin": begin - self._offset(index)}
            self._environment.runner.send_message(COMMAND, mine, client.id)
        return begin

    def halt(self) -> None:
        """End an open loop."""
        self._send({"cmd": "halt"})
        self._arriving = False

    def cut(self) -> None:
        """End every open request."""
        self._send({"cmd": "cut"})

    def settle(self) -> None:
        """Wait until every worker has said, after now, that nothing is open there."""
        asked, deadline = monotonic(), monotonic() + DRAIN_FOREVER_S
        while monotonic() < deadline:
            late = [index for index, at_s in self._heard.items() if at_s <= asked or self._open[index]]
            if not late and len(self._heard) >= self._workers:
                return
            gevent.sleep(0.02)

    def news(self, *, health: bool) -> list[Parcel]:
        """Return what the workers have reported."""
        del health  # workers send it by themselves
        parcels, self._parcels = self._parcels, []
        return parcels

    def _send(self, command: dict[str, Any]) -> None:
        self._environment.runner.send_message(COMMAND, command)

    def machines(self) -> list[dict[str, Any]]:
        """Return what is known of the machines that are not this one, by their names; a machine's quickest worker's."""
        found: dict[str, Machine] = {}
        for clock in self._clocks.values():
            if clock.name and clock.known:
                told = clock.told()
                found[told.name] = min(found.get(told.name, told), told, key=lambda one: one.clock_error_s)
        return [asdict(found[name]) for name in sorted(found)]

    def _offset(self, index: int) -> float:
        return self._clocks[index].offset_s if index in self._clocks else 0.0

    def _take(self, environment: Any, msg: Any, **_: Any) -> None:
        data = msg.data
        index = environment.runner.get_worker_index(msg.node_id)
        if data["boot"] != boot_id():
            clock = self._clocks.setdefault(index, Clock(data["machine"], data["way"]))
            if data["answers"] is not None:
                clock.saw(data["answers"], data["held"], data["wall"], here=(monotonic(), time()))
        report = shifted(decode_report(parse(data["report"])), self._offset(index))
        self._parcels.append(Parcel(report, _unpack(data["reads"], self._offset(index))))
        self._heard[index] = monotonic()
        self._open[index] = data["open"]
        environment.runner.send_message(COMMAND, {"cmd": "heard", "t": monotonic()}, msg.node_id)


def _unpack(reads: list[bytes], offset: float) -> list[Reads]:
    if not reads:
        return []
    counts = np.frombuffer(reads[0], np.uint32)
    bounds = np.cumsum(counts)[:-1]
    times = np.split(np.frombuffer(reads[1], np.float64) + offset, bounds)
    lines = np.split(np.frombuffer(reads[2], np.uint32), bounds)
    sizes = np.split(np.frombuffer(reads[3], np.uint32), bounds)
    return list(zip(times, lines, sizes, strict=True))
