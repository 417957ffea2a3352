"""Obeys the parent: user counts come on stdin, reports go out on stdout; without a parent this process ends."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore
from gevent.os import make_nonblocking, nb_read, nb_write

from deployctl.load.arrivals import Arrival, arrivals, offsets, read_replay
from deployctl.load.child.ask import Session
from deployctl.load.child.health import Watch
from deployctl.load.child.openloop import OpenLoop
from deployctl.load.child.recorder import Recorder
from deployctl.load.script import draws, generator
from deployctl.load.store import finalise
from deployctl.load.wire import Health, encode, encode_report

_ARRIVALS_KEY = 2**32
_REPORT_S = 0.25
_HEALTH_EVERY = 2
_CUT_WAIT_S = 2.0
_DRAIN_FOREVER_S = 86_400
# A full collection stops a thousand streams for some 8 ms. Requests leave no cycles behind, so it can wait for a drain.
_GC_THRESHOLDS = (100_000, 50, 1000)
_SWITCH_S = 0.0001  # how long a writing thread may keep the event loop from the interpreter

log = logging.getLogger(__name__)


class Channel:
    """The stdout of this process as a stream of events; whatever else is printed goes to stderr, which is a log."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        make_nonblocking(self._out)
        self._pending = bytearray()
        self._wake = Event()
        _spawn(self._write)

    def send(self, line: bytes) -> None:
        """Queue a line; never blocks."""
        self._pending += line
        self._wake.set()

    def flush(self) -> None:
        """Wait until everything is written."""
        while self._pending:
            gevent.sleep(0.005)

    def _write(self) -> NoReturn:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._pending:
                written = nb_write(self._out, bytes(self._pending[:65536]))
                del self._pending[:written]


class Control:
    """Runs the parent's commands on Locust's runner."""

    def __init__(self, environment: Any, session: Session, channel: Channel, watch: Watch) -> None:
        self._environment = environment
        self._session = session
        self._recorder: Recorder = session.recorder
        self._channel = channel
        self._watch = watch
        self._holding: Any = None
        self._draining = False
        self._open_loop = OpenLoop(session)
        self._reporting = BoundedSemaphore()
        self._threads = gevent.get_hub().threadpool
        sys.setswitchinterval(_SWITCH_S)
        environment.stop_timeout = _DRAIN_FOREVER_S  # open requests end by themselves, or by their own timeout

    def start(self) -> None:
        """Begin to listen and to report."""
        gc.collect()
        gc.freeze()  # what Locust has loaded lives for ever; searching it for garbage would stall the loop
        gc.set_threshold(*_GC_THRESHOLDS)
        for task in (self._watch.run, self._report, self._listen):
            _spawn(task)
        self._channel.send(encode({"event": "ready", "t": monotonic()}))

    def _listen(self) -> NoReturn:
        make_nonblocking(0)
        commands: dict[str, Callable[[dict[str, Any]], None]] = {
            "users": self._level,
            "rate": self._level,
            "replay": self._level,
            "cut": lambda _: self._cut(),
            "stop": lambda _: self._stop(),
        }
        pending = b""
        while data := nb_read(0, 65536):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                command = json.loads(line)
                commands[command["cmd"]](command)
        self._leave()

    def _leave(self) -> NoReturn:
        """The parent is gone: keep what is finished, and go."""
        self._reporting.acquire(timeout=_CUT_WAIT_S)
        self._recorder.collect(None)
        self._recorder.close()
        os._exit(0)

    def _report(self) -> NoReturn:
        parent = os.getppid()
        rounds = 0
        while True:
            gevent.sleep(_REPORT_S)
            rounds += 1
            if os.getppid() != parent:
                self._leave()
            health = None
            if rounds % _HEALTH_EVERY == 0:
                health = self._watch.report(self._environment.runner.user_count, len(self._recorder.live))
            self._tell(health)

    def _tell(self, health: Health | None = None) -> None:
        """Send what is new, and write it when a batch is full; the costly part runs in a thread beside the loop."""
        with self._reporting:
            report = self._recorder.collect(health)
            if not report.empty:
                self._channel.send(self._threads.apply(encode_report, (report,)))
            if self._recorder.write_due:
                self._threads.apply(self._recorder.write)

    def _level(self, command: dict[str, Any]) -> None:
        if self._holding is not None:
            self._holding.kill()
        self._holding = _spawn(self._hold, command)

    def _hold(self, command: dict[str, Any]) -> None:
        runner = self._environment.runner
        users = int(command.get("n", 0))
        arriving = command["cmd"] != "users"
        if users < runner.user_count or arriving or self._draining or self._open_loop.running:
            # Fewer users: all finish their open request and leave, then the new ones come. So every level starts alike.
            self._draining = True
            self._open_loop.stop()
            self._ramp(0)
            self._draining = False
            gc.collect()
        self._session.think = bool(command.get("think", True))
        began = monotonic()
        if arriving:
            began = self._open_loop.start(self._arrivals(command))
        elif users:
            self._ramp(users)
        self._tell()
        level = {"event": "level", "t": monotonic(), "began": began, "users": users}
        self._channel.send(encode(level | {"rate": command.get("per_s", 0.0)}))

    def _arrivals(self, command: dict[str, Any]) -> Iterator[Arrival]:
        spec = self._session.spec
        # A stream of random numbers that no user has, and another one for each level.
        rng = generator(spec.seed, _ARRIVALS_KEY + next(self._session.numbers))
        drawn = draws(spec.workload, rng)
        if command["cmd"] == "replay":
            return read_replay(Path(command["path"]), drawn, command["speed"])
        return arrivals(offsets(command["process"], command["per_s"], rng), drawn)

    def _ramp(self, users: int) -> None:
        runner = self._environment.runner
        runner.start(users, max(1, users, runner.user_count))
        runner.spawning_greenlet.join()

    def _cut(self) -> None:
        for live in list(self._recorder.live.values()):
            live.greenlet.kill(block=False)

    def _stop(self) -> None:
        _spawn(self._end)

    def _end(self) -> None:
        if self._holding is not None:
            self._holding.kill()
        self._cut()
        deadline = monotonic() + _CUT_WAIT_S
        while self._recorder.live and monotonic() < deadline:
            gevent.sleep(0.01)
        self._tell()
        self._reporting.acquire()
        self._recorder.close()
        samples = self._session.spec.samples
        if samples is not None:
            finalise([samples], samples.with_suffix(".parquet"))
        self._channel.send(encode({"event": "bye", "t": monotonic()}))
        self._channel.flush()
        os._exit(0)


def _spawn(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``task`` beside the users; if it fails, so does the process: half a load generator measures nothing."""
    greenlet = gevent.spawn(task, *arguments)
    greenlet.link_exception(lambda _: os._exit(70))
    return greenlet
