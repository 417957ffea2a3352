"""The worker's half of a distributed run: obeys the master's messages, reports over Locust's own."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from shutil import rmtree
from time import monotonic, time
from typing import Any, NoReturn

import gevent
import numpy as np
from locust import rpc

from deployctl.errors import HostUnreachable
from deployctl.load.child.ask import Session
from deployctl.load.child.channel import beside, commands
from deployctl.load.child.control import HEALTH_EVERY, REPORT_S
from deployctl.load.child.local import Local
from deployctl.load.remote import MACHINE_VARIABLE
from deployctl.load.roundtrip import no_op, round_trip
from deployctl.load.store import Reads
from deployctl.load.visitor import FOLDER_VARIABLE
from deployctl.load.wire import encode_report

_message: Any = rpc.Message
COMMAND, REPORT = "deployctl-command", "deployctl-report"
_NO_OPS = 10  # requests that measure the way to the server


@cache
def boot_id() -> str:
    """Return what tells one boot of one machine from all others: processes with the same share a monotonic clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Worker:
    """Reports four times a second, whether there is news or not: the master waits for its word."""

    def __init__(self, environment: Any, session: Session) -> None:
        self._runner = environment.runner
        self._local = Local(environment, session, self._runner.worker_index)
        self._session = session
        self._answers: tuple[float, float] | None = None
        self._machine = os.environ.get(MACHINE_VARIABLE, "")
        self._way_s = 0.0
        self._runner.register_message(COMMAND, self._obey)

    def start(self) -> None:
        """Begin to obey and to report; on another machine, first see whether the server can be reached from there."""
        self._local.start()
        beside(self._stay)
        if self._machine:
            spec = self._session.spec
            try:
                self._way_s = round_trip(spec.url, requests=_NO_OPS, path=no_op(spec.protocol)).p50_s
            except HostUnreachable as error:
                os.write(2, f"{error.message}\n".encode())  # what is read of a load generator that was lost
                os._exit(HostUnreachable.exit_code)
            rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)  # all of it has been read
        beside(self._report)

    def _stay(self) -> NoReturn:
        """Live as long as the parent does."""
        for _ in commands():
            pass
        os._exit(0)

    def _obey(self, environment: Any, msg: Any, **_: Any) -> None:
        del environment
        command = msg.data
        match command["cmd"]:
            case "think":
                self._local.think(command["on"])
            case "cut":
                self._local.cut()
            case "halt":
                beside(self._local.halt)
            case "rate" | "replay":
                self._local.arrive(command)
            case "heard":
                self._answers = (command["t"], monotonic())

    def _report(self) -> NoReturn:
        rounds = 0
        while True:
            gevent.sleep(REPORT_S)
            rounds += 1
            threads = gevent.get_hub().threadpool
            for parcel in self._local.news(health=rounds % HEALTH_EVERY == 0):
                data = {
                    "report": threads.apply(encode_report, (parcel.report,)),
                    "reads": pack(parcel.reads),
                    "open": len(self._session.recorder.live),
                    "boot": boot_id(),
                    "answers": self._answers,
                    "held": 0.0 if self._answers is None else monotonic() - self._answers[1],
                    "wall": time() - monotonic(),
                    "machine": self._machine,
                    "way": self._way_s,
                }
                self._answers = None
                self._runner.client.send(_message(REPORT, data, self._runner.client_id))


def pack(reads: list[Reads]) -> list[bytes]:
    """Return the reads of many requests as four runs of bytes: how many each has, times, lines, sizes."""
    if not reads:
        return []
    counts = np.array([len(times) for times, _, _ in reads], np.uint32)
    return [counts.tobytes(), *(np.concatenate(column).tobytes() for column in zip(*reads, strict=True))]
