"""Starts Locust in a process of its own, tells it how many users to hold, and reads back what they saw."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self

from deployctl.catalog.workloads import Workload
from deployctl.errors import MeasurementError
from deployctl.load.arrivals import Process, read_log
from deployctl.load.processes import LoadProcesses
from deployctl.load.remote import LoadMachine, Visit, visit
from deployctl.load.samples import Sample
from deployctl.load.spec import SPEC_VARIABLE, TEMPERATURE, LoadSpec
from deployctl.load.wire import Health, Level, Machine, Open, Report, decode_report
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
    "openai" measures a server of chat completions (vLLM, llama-server, a gateway) by the same recorder. ``workers``
    processes generate the load where one core is too little (0: a single process, no master); with ``machines`` they
    run there, ``workers`` (at least one) on each. ``log`` is what `replay` plays, ``speed`` times as fast. Raw samples
    are in
    ``out_dir`` (`sample_files`), whatever else the process prints in ``out_dir/locust.log``. When this process dies,
    the load process sees the end of its stdin and ends at once; Ctrl-C at the terminal reaches only this one.
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
        workers: int = 0,
        machines: Sequence[LoadMachine] = (),
        log: Path | None = None,
        speed: float = 1.0,
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
        self._workers = workers
        self._machines = list(machines)
        self._log = log
        self._speed = speed
        self.logged = read_log(log) if log else ()
        self.machines: tuple[Machine, ...] = ()
        self.notes: list[str] = []
        self._processes: LoadProcesses | None = None
        self._open: dict[int, Open] = {}
        self._part = 0
        self._first_user = 0
        self._heard: dict[int, float] = {}
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
        """Whether the load generator runs, all of its workers too, and its reports still come."""
        return self._processes is not None and self._processes.alive

    @property
    def pid(self) -> int | None:
        """The process id of the Locust that takes the commands."""
        return None if self._processes is None else self._processes.pid

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, if there are any."""
        return [] if self._processes is None else self._processes.worker_pids

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
        failed: set[str] = set()
        while True:
            self._release()
            self._launch()
            if self._await_ready():
                return
            # A second try on the same machine: a port over there may have been taken. A machine that fails twice is
            # gone; the others go on without it.
            for name in self.lost_machines:
                if name in failed:
                    self._give_up(name)
                failed.add(name)

    @property
    def lost_machines(self) -> list[str]:
        """The other machines on which a worker was lost."""
        return [] if self._processes is None else self._processes.lost_machines

    @property
    def generators(self) -> int:
        """How many processes generate load."""
        return len(self._machines) * max(1, self._workers) if self._machines else max(1, self._workers)

    @property
    def has_master(self) -> bool:
        """Whether Locust runs as a master with workers."""
        return bool(self._machines) or self._workers > 0

    def _launch(self) -> None:
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
            replay=self._log.resolve() if self._log else None,
            speed=self._speed,
        )
        spec_file = self.out_dir / "load.json"
        spec.write(spec_file)
        self._open, self._heard = {}, {}

        def visits(port: int) -> list[Visit]:
            files = self._files(folder)
            each = range(max(1, self._workers))
            return [visit(one, spec, files, self._locustfile, port) for one in self._machines for _ in each]

        self._processes = LoadProcesses(
            folder / self._locustfile,
            self.url,
            self.generators if self._machines else self._workers,
            {SPEC_VARIABLE: str(spec_file)},
            self.log_file,
            visits if self._machines else None,
        )

    def _files(self, folder: Path) -> dict[str, str]:
        """What a worker on another machine reads."""
        paths = [folder / self._locustfile, *sorted((folder / "prompts").glob("*.txt"))]
        found = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        return found | ({"replay.jsonl": self._log.read_text(encoding="utf-8")} if self._log else {})

    def _give_up(self, name: str) -> None:
        why = self._said_by(name)
        self._machines = [machine for machine in self._machines if machine.name != name]
        if not self._machines:
            self._release()
            raise MeasurementError(f"no load generator is left; {name}: {why}", hint=f"read {self.log_of(name)}")
        self.notes.append(f"the load generator {name} was lost and the others went on without it: {why}")

    def _said_by(self, name: str) -> str:
        return _tail(self.log_of(name), 1) or "its connection ended"

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

    def replay(self) -> None:
        """Ask for the arrivals of the log that this driver was given (`logged`)."""
        lasts_s = max(self.logged[-1].at_s / self._speed, 1.0)
        self._send({"cmd": "replay", "per_s": len(self.logged) / lasts_s})

    def cut(self) -> None:
        """End every open request now; they are recorded as cancelled, which is neither a hit nor a miss."""
        self._send({"cmd": "cut"})

    def poll(self, timeout_s: float = 0.0) -> Batch:
        """Return what has come, waiting up to ``timeout_s`` for something (forever is not offered)."""
        requests: list[Sample] = []
        health: list[Health] = []
        next_starts: dict[int, float] = {}
        level: Level | None = None
        processes = self._processes
        while processes is not None and (event := processes.next_event(timeout_s)) is not None:
            timeout_s = 0.0
            if event["event"] == "level":
                level = Level(event["users"], event["began"], event["t"], event["rate"])
            elif event["event"] == "machines":
                self.machines = tuple(Machine(**row) for row in event["rows"])
            elif event["event"] == "batch":
                report = decode_report(event)
                self._note(report)
                requests.extend(report.samples)
                next_starts.update(report.next_starts)
                if report.health:
                    health.append(report.health)
        return Batch(requests, list(self._open.values()), health, level, next_starts, self._as_of_s)

    def stop(self) -> None:
        """Stop the load process: open requests are cut, samples kept, everything ended within seconds."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.stop(_STOP_TIMEOUT_S)

    def _release(self) -> None:
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.kill()

    def log_tail(self, lines: int = 8) -> str:
        """Return the end of the load process's log."""
        return _tail(self.log_file, lines)

    def log_of(self, machine: str) -> Path:
        """Where is kept what another machine's workers and their ssh clients say."""
        return self.out_dir / f"loadgen-{machine}.log"

    def _loadtests(self) -> Path:
        if any(self._project.overrides(f"loadtests/{name}") for name in (self._locustfile, "prompts/en.txt")):
            return self._project.materialise("loadtests", self.out_dir)
        return self._project.path(f"loadtests/{self._locustfile}").parent

    def _send(self, command: dict[str, Any]) -> None:
        if self._processes is None:
            raise MeasurementError("the load process is not running")
        try:
            self._processes.send(command)
        except OSError as error:
            raise MeasurementError(
                f"the load process has ended: {self.log_tail()}", hint=f"read {self.log_file}"
            ) from error

    def _await_ready(self) -> bool:
        """Wait for the load process; False where another machine was lost on the way. Raises MeasurementError."""
        processes, deadline = self._processes, monotonic() + _START_TIMEOUT_S
        assert processes is not None
        try:
            while processes.alive and monotonic() < deadline:
                event = processes.next_event(0.2)
                if event is not None and event["event"] == "ready":
                    return True
            ended, lost = not processes.alive, bool(processes.lost_machines)
        except BaseException:
            self._release()
            raise
        if lost:
            return False
        self._release()
        what = "ended before it was ready" if ended else f"was not ready after {_START_TIMEOUT_S:.0f} s"
        raise MeasurementError(f"the load process {what}: {self.log_tail()}", hint=f"read {self.log_file}")

    def _note(self, report: Report) -> None:
        self._heard[report.worker] = report.t_s
        if len(self._heard) >= self.generators:  # what is true of all of them
            self._as_of_s = max(self._as_of_s, min(self._heard.values()))
        for one in report.opened:
            self._open[one.user] = one
            self._first_user = max(self._first_user, one.user + 1)
        for user, seq, at in report.first_tokens:
            if user in self._open:
                self._open[user] = Open(user, seq, self._open[user].intended_s, at)
        for sample in report.samples:
            self._first_user = max(self._first_user, sample.user + 1)
            if sample.user in self._open and self._open[sample.user].seq == sample.seq:
                del self._open[sample.user]


def _tail(file: Path, lines: int) -> str:
    try:
        return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
