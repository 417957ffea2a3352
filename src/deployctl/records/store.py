"""Where runs are kept: one directory per run, the record in it, and the raw samples beside the record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from deployctl.errors import RecordError
from deployctl.records.files import write_atomic
from deployctl.records.schema import MAX_BYTES, RUN_ID, Record, parse_record

RECORD = "record.json"
LOCK = "run.lock"
LIST_HINT = "deployctl runs"

_REFERENCE = re.compile(r"[0-9TZa-f-]{1,40}")
_RUN_ID = re.compile(RUN_ID)

RunState = Literal["finished", "running", "unfinished", "broken"]


@dataclass(frozen=True)
class Run:
    """A run's id and directory; the caller may put its own files there."""

    id: str
    dir: Path


@dataclass(frozen=True)
class RunEntry:
    """One line of the list of runs.

    ``state``: ``finished`` (there is a record, whatever it says), ``running`` (no record yet, its process lives),
    ``unfinished`` (no record and no process: interrupted), ``broken`` (no readable record; ``problem`` says why).
    """

    id: str
    dir: Path
    state: RunState
    record: Record | None = None
    problem: str = ""


class RunStore:
    """The runs under ``data_dir/runs``. Safe for several processes at once; nothing is created before ``new_run``."""

    def __init__(self, data_dir: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.root = Path(data_dir) / "runs"
        self._now = now
        self._locks: dict[str, int] = {}

    def new_run(self) -> Run:
        """Create and return a run of a fresh id: the UTC second, then four random hex digits (more if need be).

        The directory is 0700: raw samples and logs may name hosts. Raises RecordError where it cannot be created.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            for attempt in range(1000):
                stamp = self._now().astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
                run_id = f"{stamp}-{secrets.token_hex(2 + attempt // 100)}"
                folder = self.root / run_id
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)  # atomic: of two processes with one id, one goes on to the next
                    folder.chmod(0o700)
                    self._lock(run_id, folder)
                    return Run(run_id, folder)
        except OSError as error:
            raise RecordError(
                f"cannot create a run in {self.root}: {error.strerror}", hint="deployctl --data-dir DIR …"
            ) from None
        raise RecordError(f"no free run id in {self.root}")

    def write(self, record: Record) -> Path:
        """Write ``record`` into its run's directory, for good, and return the file's path.

        Writing the same record again does nothing. Raises RecordError when the run does not exist or holds another
        record: records never change.
        """
        folder = self._folder(record.run_id)
        path = folder / RECORD
        data = record.to_json().encode()
        try:
            write_atomic(path, data, mode=0o644, replace=False)
        except FileExistsError:
            if path.read_bytes() != data:
                raise RecordError(f"run {record.run_id} already has another record: {path}") from None
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from None
        self.release(record.run_id)
        return path

    def adopt(self, run_id: str, body: bytes, files: Mapping[str, Path]) -> bool:
        """Take in a run that was made elsewhere, whole or not at all; False: it is here already.

        ``body`` is its record as it was written, ``files`` maps names to files that lie beside it. Raises RecordError
        when another record of that run is here, or when it cannot be written.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise RecordError(f"not a run id: {run_id!r}")
        path = self.root / run_id
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if (path / RECORD).is_file():
                if (path / RECORD).read_bytes() != body:
                    raise RecordError(f"run {run_id} already has another record: {path / RECORD}")
                return False
            with tempfile.TemporaryDirectory(prefix=".import-", dir=self.root) as folder:
                staged = Path(folder) / run_id
                staged.mkdir(mode=0o700)
                for name, source in files.items():
                    _check_name(name)
                    shutil.copyfile(source, staged / name)
                write_atomic(staged / RECORD, body)
                staged.rename(path)
        except OSError as error:
            raise RecordError(f"cannot take run {run_id} in: {error.strerror or error}") from None
        return True

    def recorded(self) -> dict[str, Path]:
        """The folders of all runs that have a record, by id."""
        return {run.id: run.dir for run in self._runs() if (run.dir / RECORD).is_file()}

    def remove(self, run_id: str) -> None:
        """Delete a run for good (retention)."""
        folder = self._folder(run_id)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise RecordError(f"cannot remove {folder}: {error.strerror}") from None

    def attach(self, run_id: str, name: str, data: str | bytes) -> Path:
        """Write a file of the run (a report), atomically, replacing an older one; return its path."""
        _check_name(name)
        path = self._folder(run_id) / name
        try:
            write_atomic(path, data.encode() if isinstance(data, str) else data)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from None
        return path

    def abandon(self, run_id: str) -> None:
        """Give up a run that never got anywhere: its folder goes, unless something was kept in it."""
        self.release(run_id)
        with contextlib.suppress(OSError):
            (self.root / run_id).rmdir()

    def release(self, run_id: str) -> None:
        """Say that this process no longer works on the run (``write`` does it, and so does the process's end)."""
        descriptor = self._locks.pop(run_id, None)
        if descriptor is not None:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                (self.root / run_id / LOCK).unlink()

    def resolve(self, reference: str) -> Run:
        """Return the run that ``reference`` means: an id, the start of one that fits only one run, or ``last``.

        ``last`` is the newest run that has a record. Raises RecordError (none, several, or not an id at all).
        """
        runs = self._runs()
        if reference == "last":
            done = [run for run in runs if (run.dir / RECORD).is_file()]
            if not done:
                raise RecordError(f"there is no finished run in {self.root}", hint=LIST_HINT)
            return done[0]
        if not _REFERENCE.fullmatch(reference):
            raise RecordError(f"not a run id: {reference!r}", hint=LIST_HINT)
        found = [run for run in runs if run.id.startswith(reference)]
        exact = [run for run in found if run.id == reference]
        if len(found) > 1 and not exact:
            raise RecordError(
                f"{reference!r} fits {len(found)} runs, among them {found[0].id} and {found[1].id}", hint=LIST_HINT
            )
        if not found:
            raise RecordError(f"there is no run {reference!r} in {self.root}", hint=LIST_HINT)
        return (exact or found)[0]

    def read(self, reference: str) -> Record:
        """Return the record of the run that ``reference`` means (see ``resolve``). Raises RecordError."""
        run = self.resolve(reference)
        if not (run.dir / RECORD).is_file():
            raise RecordError(f"run {run.id} has no record: it is still going on or was interrupted", hint=LIST_HINT)
        record = read_record(run.dir / RECORD)
        if record.run_id != run.id:
            raise RecordError(f"{run.dir / RECORD} is the record of another run, {record.run_id}")
        return record

    def list(self, limit: int | None = None) -> tuple[RunEntry, ...]:
        """Return the runs, newest first, at most ``limit``; a run that cannot be read is listed as such."""
        return tuple(self._entry(run) for run in self._runs()[:limit])

    @property
    def unfinished(self) -> tuple[RunEntry, ...]:
        """The runs without a record whose process is gone, newest first."""
        return tuple(
            entry
            for run in self._runs()
            if not (run.dir / RECORD).is_file() and (entry := self._entry(run)).state == "unfinished"
        )

    def _runs(self) -> tuple[Run, ...]:
        if not self.root.is_dir():
            return ()
        with os.scandir(self.root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        ids = sorted(filter(_RUN_ID.fullmatch, names), reverse=True)
        return tuple(Run(run_id, self.root / run_id) for run_id in ids)

    def _entry(self, run: Run) -> RunEntry:
        if not (run.dir / RECORD).is_file():
            return RunEntry(run.id, run.dir, "running" if self._alive(run) else "unfinished")
        try:
            return RunEntry(run.id, run.dir, "finished", self.read(run.id))
        except RecordError as error:
            return RunEntry(run.id, run.dir, "broken", problem=error.message)

    def _folder(self, run_id: str) -> Path:
        folder = self.root / run_id
        if not _RUN_ID.fullmatch(run_id) or not folder.is_dir() or folder.is_symlink():
            raise RecordError(f"there is no run {run_id!r} in {self.root}", hint=LIST_HINT)
        return folder

    def _lock(self, run_id: str, folder: Path) -> None:
        # The kernel drops the lock when the process ends, however it ends: that is how others know that a run died.
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: the run will be listed as unfinished
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._locks[run_id] = descriptor

    def _alive(self, run: Run) -> bool:
        if run.id in self._locks:
            return True
        try:
            descriptor = os.open(run.dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False


def _check_name(name: str) -> None:
    if name in ("", ".", "..", RECORD, LOCK) or Path(name).name != name or "\0" in name:
        raise RecordError(f"not a file name for a run: {name!r}")


def read_record(path: Path) -> Record:
    """Read one ``record.json`` wherever it lies. Raises RecordError naming the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
    return parse_record(data, source=str(path))
