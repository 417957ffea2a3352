"""Starts Locust, alone or as a master with workers, and sees to it that nothing of it stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from deployctl.hosts.askpass import answering
from deployctl.load.remote import Visit
from deployctl.load.wire import encode

Event = dict[str, Any]
Visits = Callable[[int], Sequence[Visit]]
"""The workers to start on other machines, given the master's port."""


def locust_argv(locustfile: Path, url: str, *role: str) -> list[str]:
    """Return the command line of a Locust that sets no level by itself."""
    return [*(sys.executable, "-m", "locust", "-f", str(locustfile)), *("--host", url, "--loglevel", "WARNING"), *role]


def free_port() -> int:
    """Return a port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LoadProcesses:
    """One Locust that generates load (``workers`` 0), or a master and its workers, each with a pipe to this process.

    Every process ends when its stdin does, so a parent that is killed leaves nothing; each has a session of its own, so
    Ctrl-C at the terminal does not reach it. With ``visits`` the workers run on other machines, over ssh clients; what
    those say is in ``<log_file's folder>/loadgen-<machine>.log``.
    """

    def __init__(
        self,
        locustfile: Path,
        url: str,
        workers: int,
        environment: Mapping[str, str],
        log_file: Path,
        visits: Visits | None = None,
    ) -> None:
        headless = ("--headless", "--only-summary", "--users", "0", "--spawn-rate", "1")
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._ended = False
        self._workers: list[subprocess.Popen[bytes]] = []
        self._answers = contextlib.ExitStack()  # to what ssh clients ask while they log in
        self._machines: list[str] = []  # of the workers, parallel to them, where they are elsewhere
        env = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
        with log_file.open("ab") as log:

            def launch(argv: list[str], out: Any) -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    argv, stdin=subprocess.PIPE, stdout=out, stderr=log, env=env, start_new_session=True
                )

            if not workers:
                self._main = launch(locust_argv(locustfile, url, *headless), subprocess.PIPE)
            else:
                port = str(free_port())
                bind = ("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port)
                expect = ("--expect-workers", str(workers))
                join = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
                self._main = launch(locust_argv(locustfile, url, *headless, *bind, *expect), subprocess.PIPE)
                if visits is None:
                    for _ in range(workers):
                        self._workers.append(launch(locust_argv(locustfile, url, *join), log))
                else:
                    for visit in visits(int(port)):
                        self._visit(visit, log_file.parent)
        threading.Thread(target=self._read, daemon=True, name="load-reader").start()

    def _visit(self, visit: Visit, folder: Path) -> None:
        env = {**os.environ, **self._answers.enter_context(answering(visit.target)), "LC_ALL": "C"}
        with (folder / f"loadgen-{visit.machine}.log").open("ab") as log:
            ssh = subprocess.Popen(
                visit.argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
            )
        self._workers.append(ssh)
        self._machines.append(visit.machine)
        assert ssh.stdin is not None

        def speak(pipe: Any) -> None:
            with contextlib.suppress(OSError, ValueError):  # it has ended: `alive` says so
                pipe.write(visit.first_input)
                pipe.flush()

        threading.Thread(target=speak, args=(ssh.stdin,), daemon=True, name=f"visit {visit.machine}").start()

    @property
    def lost_machines(self) -> list[str]:
        """Other machines with a worker whose connection has ended."""
        pairs = zip(self._machines, self._workers, strict=False)
        return sorted({machine for machine, worker in pairs if worker.poll() is not None})

    @property
    def pid(self) -> int:
        """The process id of the Locust that takes the commands."""
        return self._main.pid

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, or of the ssh clients that hold them."""
        return [worker.pid for worker in self._workers]

    @property
    def alive(self) -> bool:
        """Whether every process runs and reports still come."""
        return not self._ended and all(process.poll() is None for process in (self._main, *self._workers))

    def send(self, command: Event) -> None:
        """Send a command; raises OSError when there is nobody to take it."""
        assert self._main.stdin is not None
        try:
            self._main.stdin.write(encode(command))
            self._main.stdin.flush()
        except OSError:
            self._ended = True
            raise

    def next_event(self, timeout_s: float) -> Event | None:
        """Return the next event, None if none comes in time or ever again (see `alive`)."""
        try:
            event = self._events.get(timeout=timeout_s) if timeout_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return None
        self._ended = self._ended or event is None
        return event

    def stop(self, timeout_s: float) -> None:
        """Ask the load process to write what it has and to end; end all by force after ``timeout_s``."""
        with contextlib.suppress(OSError):
            self.send({"cmd": "stop"})
        try:
            deadline = monotonic() + timeout_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._main.wait(max(0.0, deadline - monotonic()))
        finally:
            self.kill()

    def kill(self) -> None:
        """End every process now; what they have written so far is kept."""
        self._answers.close()
        for process in (self._main, *self._workers):
            process.kill()
        for process in (self._main, *self._workers):
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _read(self) -> None:
        assert self._main.stdout is not None
        with self._main.stdout as lines:
            for line in lines:
                try:
                    self._events.put(json.loads(line))
                except ValueError:
                    break
        self._events.put(None)
