"""Starts Locust in a process of its own, tells it how many users to hold, and reads back what they saw."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self

from deployctl.catalog.workloads import Workload
from deployctl.errors import MeasurementError
from deployctl.load.arrivals import Process
from deployctl.load.samples import Sample
from deployctl.load.spec import SPEC_VARIABLE, TEMPERATURE, LoadSpec
from deployctl.load.wire import Health, Level, Open, decode_report, encode
from deployctl.resources import Project, shipped_root

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What is new since the last `LocustDriver.poll`; times in seconds on the machine's monotonic clock.

    ``requests`` have ended, in the order in which they did; ``open_requests`` are all that are open. ``health`` are the
    load process's reports on itself. ``level`` is one that has been reached meanwhile. ``next_starts`` maps users that
    began to think to the intended start that they think towards. ``as_of_s`` is the moment for which all this is true.
    """

    requests: list[Sample]
    open_requests: list[Open]
    health: list[Health]
    level: Level | None
    next_starts: dict[int, float]
    as_of_s: float

    @property
    def open_starts(self) -> list[float]:
        """Intended starts of the requests that are open."""
        return [one.intended_s for one in self.open_requests]


class LocustDriver:
    """A running Locust, as a context manager.

    ``seed`` decides lengths, think times and sampling; ``options`` go into every request unchanged. ``protocol``
    "openai" measures a server of chat completions (vLLM, llama-server, a gateway) by the same recorder. Raw samples
    are in ``out_dir`` (`sample_files`), whatever else the process prints in ``out_dir/locust.log``. When this process
    dies, the load process sees the end of its stdin and ends at once; Ctrl-C at the terminal reaches only this one.
    """

    def __init__(
        self,
        url: str,
        model: str,
        workload: Workload,
        *,
        out_dir: Path,
        project: Project | None = None,
        seed: int = 0,
        nonce: str | None = None,
        options: dict[str, Any] | None = None,
        temperature: float = TEMPERATURE,
        tokens_per_word: float | None = None,
        locustfile: str = "chat.py",
        protocol: Literal["ollama", "openai"] = "ollama",
    ) -> None:
        self.out_dir = out_dir
        self.workload = workload
        self.url = url
        self.model = model
        self.log_file = out_dir / "locust.log"
        self._project = project or Project(shipped_root())
        self._options = dict(options or {})
        self._seed = seed
        self._nonce = nonce or secrets.token_hex(8)
        self._temperature = temperature
        self._tokens_per_word = tokens_per_word
        self._locustfile = locustfile
        self._protocol: Literal["ollama", "openai"] = protocol
        self._process: subprocess.Popen[bytes] | None = None
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._open: dict[int, Open] = {}
        self._part = 0
        self._first_user = 0
        self._ended = False
        self._as_of_s = monotonic()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the load process runs and its reports still come."""
        return self._process is not None and self._process.poll() is None and not self._ended

    @property
    def pid(self) -> int | None:
        """The load process's id."""
        return None if self._process is None else self._process.pid

    @property
    def sample_files(self) -> list[Path]:
        """The files that hold the raw samples so far, oldest first: Parquet where a part has ended, else Arrow."""
        found = {path.stem: path for path in sorted(self.out_dir.glob("samples-*.arrow"))}
        found |= {path.stem: path for path in sorted(self.out_dir.glob("samples-*.parquet"))}
        return [found[stem] for stem in sorted(found)]

    def start(self) -> None:
        """Start the load process, or start it anew after it died; returns once it is ready. Raises MeasurementError."""
        if self.alive:
            return
        self._release()
        self.out_dir.mkdir(parents=True, exist_ok=True)
        while any(self.out_dir.glob(f"samples-{self._part:03d}.*")):
            self._part += 1
        folder = self._loadtests()
        spec = LoadSpec(
            url=self.url,
            model=self.model,
            workload=self.workload,
            prompts=folder / "prompts",
            seed=self._seed,
            nonce=self._nonce,
            samples=self.out_dir / f"samples-{self._part:03d}.arrow",
            first_user=self._first_user,
            temperature=self._temperature,
            options=self._options,
            tokens_per_word=self._tokens_per_word,
            protocol=self._protocol,
        )
        spec_file = self.out_dir / "load.json"
        spec.write(spec_file)
        self._events = queue.SimpleQueue()
        self._open = {}
        self._ended = False
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, SPEC_VARIABLE: str(spec_file), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self._process, self._events), daemon=True, name="load-reader").start()
        self._await("ready", _START_TIMEOUT_S)

    def set_users(self, users: int, *, think: bool = True) -> None:
        """Ask for ``users`` users and return at once; `poll` reports the level when it is reached.

        From more users to fewer, all users first finish their open request and leave. ``think=False`` leaves out think
        times (a baseline). The level of 0 users is reached when no request is open any more.
        """
        self._send({"cmd": "users", "n": users, "think": think})

    def set_rate(self, per_s: float, process: Process = "poisson") -> None:
        """Ask for an open loop instead of users: ``per_s`` requests per second arrive, whatever is still open.

        Each arrival is a user of its own with one request. `set_users` ends it: set_users(0) lets the open ones end.
        """
        self._send({"cmd": "rate", "per_s": per_s, "process": process})

    def replay(self, log: Path, speed: float = 1.0) -> None:
        """Ask for the arrivals of a JSON Lines log (see `load.arrivals.read_replay`), ``speed`` times as fast."""
        self._send({"cmd": "replay", "path": str(log.resolve()), "speed": speed})

    def cut(self) -> None:
        """End every open request now; they are recorded as cancelled, which is neither a hit nor a miss."""
        self._send({"cmd": "cut"})

    def poll(self, timeout_s: float = 0.0) -> Batch:
        """Return what has come, waiting up to ``timeout_s`` for something (forever is not offered)."""
        requests: list[Sample] = []
        health: list[Health] = []
        next_starts: dict[int, float] = {}
        level: Level | None = None
        deadline = monotonic() + timeout_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - monotonic())) if timeout_s else self._next_now()
            except queue.Empty:
                break
            if event is None:
                self._ended = True
                break
            timeout_s = 0.0
            if event["event"] == "level":
                level = Level(event["users"], event["began"], event["t"], event["rate"])
            elif event["event"] == "batch":
                report = decode_report(event)
                self._as_of_s = report.t_s
                self._note(report.opened, report.first_tokens, report.samples)
                requests.extend(report.samples)
                next_starts.update(report.next_starts)
                if report.health:
                    health.append(report.health)
        return Batch(requests, list(self._open.values()), health, level, next_starts, self._as_of_s)

    def stop(self) -> None:
        """Stop the load process: open requests are cut, samples kept, everything ended within seconds."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError, MeasurementError):
            self._send({"cmd": "stop"})
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass  # what it has written so far is kept
        finally:
            self._release()

    def _release(self) -> None:
        """See to it that the process is gone, and its pipe closed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()

    def log_tail(self, lines: int = 8) -> str:
        """Return the end of the load process's log."""
        try:
            return "\n".join(self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _argv(self, folder: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "locust", "-f", str(folder / self._locustfile), "--headless", "--only-summary"),
            *("--users", "0", "--spawn-rate", "1", "--host", self.url, "--loglevel", "WARNING"),
        ]

    def _loadtests(self) -> Path:
        if any(self._project.overrides(f"loadtests/{name}") for name in (self._locustfile, "prompts/en.txt")):
            return self._project.materialise("loadtests", self.out_dir)
        return self._project.path(f"loadtests/{self._locustfile}").parent

    def _send(self, command: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            raise MeasurementError("the load process is not running")
        try:
            self._process.stdin.write(encode(command))
            self._process.stdin.flush()
        except OSError as error:
            self._ended = True
            raise MeasurementError(
                f"the load process has ended: {self.log_tail()}", hint=f"read {self.log_file}"
            ) from error

    def _await(self, name: str, timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        try:
            while True:
                event = self._events.get(timeout=max(0.0, deadline - monotonic()))
                if event is None:
                    self._release()
                    raise MeasurementError(
                        f"the load process ended before it was ready: {self.log_tail()}", hint=f"read {self.log_file}"
                    )
                if event["event"] == name:
                    return
        except queue.Empty:
            self.stop()
            raise MeasurementError(
                f"the load process was not ready after {timeout_s:.0f} s", hint=f"read {self.log_file}"
            ) from None

    def _next_now(self) -> dict[str, Any] | None:
        return self._events.get_nowait()

    def _note(
        self, opened: tuple[Open, ...], first_tokens: tuple[tuple[int, int, float], ...], samples: tuple[Sample, ...]
    ) -> None:
        for one in opened:
            self._open[one.user] = one
            self._first_user = max(self._first_user, one.user + 1)
        for user, seq, at in first_tokens:
            if user in self._open:
                self._open[user] = Open(user, seq, self._open[user].intended_s, at)
        for sample in samples:
            self._first_user = max(self._first_user, sample.user + 1)
            if sample.user in self._open and self._open[sample.user].seq == sample.seq:
                del self._open[sample.user]

    @staticmethod
    def _read(process: subprocess.Popen[bytes], events: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                try:
                    events.put(json.loads(line))
                except ValueError:
                    break
        events.put(None)
