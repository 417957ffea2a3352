"""A night on disk, as it happens: an append-only file that a kill at any point leaves readable."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from deployctl.errors import HostBusy, RecordError
from deployctl.nightly.matrix import Task

State = Literal["waiting", "running", "done", "failed", "away", "busy", "skipped"]
FINAL: frozenset[State] = frozenset({"done", "failed", "skipped"})
EVENTS = "events.jsonl"
SUMMARY = "summary.json"
LOCK = "lock"
NIGHT_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")


@dataclass(frozen=True)
class Progress:
    """How far a task has come. ``attempts`` counts starts; ``run_ids`` are the runs that it began, newest last."""

    task: Task
    state: State = "waiting"
    attempts: int = 0
    run_ids: tuple[str, ...] = ()
    message: str = ""


@dataclass
class Night:
    """A night and its journal. Every change is on the disk before it counts."""

    id: str
    folder: Path
    started_at: datetime
    ended: bool = False
    progress: dict[str, Progress] = field(default_factory=dict)

    def note(self, key: str, state: State, *, message: str = "", run_id: str | None = None) -> Progress:
        """Write a task's new state down and return its progress."""
        event = {"task": key, "state": state, "message": message, "run_id": run_id}
        self._append(event)
        self.progress[key] = _moved(self.progress[key], event)
        return self.progress[key]

    def close(self, summary: dict[str, Any]) -> None:
        """End the night."""
        from deployctl.records.files import write_atomic

        write_atomic(self.folder / SUMMARY, (json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode())
        self._append({"ended": True})
        self.ended = True

    def probes_of(self, key: str) -> Path:
        """The folder in which the probes of a task are kept until it is done."""
        number = list(self.progress).index(key)
        return self.folder / f"probes-{number:03d}"

    def _append(self, event: dict[str, Any]) -> None:
        _append_line(self.folder / EVENTS, event | {"at": datetime.now(UTC).isoformat()})


def begin(root: Path, tasks: Sequence[Task], *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Night:
    """Begin a night in a folder of its own under ``root``."""
    moment = now()
    night_id = f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder = root / night_id
    try:
        folder.mkdir(parents=True, mode=0o700)
        _append_line(
            folder / EVENTS,
            {"night": night_id, "started_at": moment.isoformat(), "tasks": [task.to_dict() for task in tasks]},
        )
    except OSError as error:
        raise RecordError(f"cannot begin a night in {root}: {error.strerror}") from None
    return Night(night_id, folder, moment, progress={task.key: Progress(task) for task in tasks})


def read(folder: Path) -> Night | None:
    """Read a night back; None where there is no readable beginning. A torn last line is left out."""
    events = list(_lines(folder / EVENTS))
    if not events or "tasks" not in events[0]:
        return None
    try:
        tasks = [Task(**plain) for plain in events[0]["tasks"]]
        night = Night(events[0]["night"], folder, datetime.fromisoformat(events[0]["started_at"]))
    except (TypeError, ValueError, KeyError):
        return None
    night.progress = {task.key: Progress(task) for task in tasks}
    for event in events[1:]:
        if event.get("ended"):
            night.ended = True
        elif event.get("task") in night.progress:
            night.progress[event["task"]] = _moved(night.progress[event["task"]], event)
    return night


def nights(root: Path) -> list[Night]:
    """All nights, newest first."""
    if not root.is_dir():
        return []
    folders = sorted((path for path in root.iterdir() if NIGHT_ID.fullmatch(path.name)), reverse=True)
    return [night for folder in folders if (night := read(folder)) is not None]


@contextmanager
def only_night(root: Path, *, wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of the nights for the block; the kernel lets it go however the process ends.

    With ``wait`` it is called each time the lock is taken, until it is free. Raises HostBusy otherwise.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait is None:
                    holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
                    raise HostBusy(
                        f"a night is running already ({holder or 'by another process'})",
                        hint="deployctl nightly --wait, or deployctl nightly status",
                    ) from None
                wait()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC".encode(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def running(root: Path) -> bool:
    """Whether a process holds the lock of the nights."""
    try:
        descriptor = os.open(root / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _moved(progress: Progress, event: dict[str, Any]) -> Progress:
    state: State = event["state"]
    run_id: str | None = event.get("run_id")
    return replace(
        progress,
        state=state,
        attempts=progress.attempts + (state == "running" and run_id is None),
        run_ids=(*(known for known in progress.run_ids if known != run_id), *([run_id] if run_id else [])),
        message=str(event.get("message", "")),
    )


def _append_line(path: Path, event: dict[str, Any]) -> None:
    """Append one line in one write and flush it to the disk; a torn line before it is closed first."""
    data = (json.dumps(event, ensure_ascii=True) + "\n").encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except OSError:
        return
    for line in text.split(b"\n"):
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
