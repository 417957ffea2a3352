"""Runs in one file: a tar of records and raw requests, written here and taken in elsewhere without being trusted."""

from __future__ import annotations

import contextlib
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from deployctl.errors import RecordError
from deployctl.records.files import write_atomic
from deployctl.records.integrity import PRUNED, contradictions, verify_run
from deployctl.records.schema import MAX_BYTES, RUN_ID, parse_record
from deployctl.records.store import RECORD, Run, RunStore

_SAMPLES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PLAIN_RUN_ID = re.compile(RUN_ID.strip("^$"))
LARGEST_SAMPLES = 16 * 1024**3


@dataclass(frozen=True)
class Imported:
    """What an import did: new runs, runs that were here already, and what was refused with the reason."""

    new: tuple[str, ...]
    known: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def export(runs: Iterable[Run], target: Path, *, samples: bool = True) -> int:
    """Write the runs' records, and their raw requests unless ``samples`` is False, into one tar; return their number.

    A run that does not verify is not handed on: RecordError. ``target`` appears only once it is whole.
    """
    count = 0
    partial = target.with_name(f".{target.name}.partial")
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
            for run in runs:
                checked = verify_run(run.id, run.dir)
                for finding in checked.findings:
                    if not checked.ok:
                        raise RecordError(f"run {run.id} is not exported: {finding.message}")
                record = parse_record((run.dir / RECORD).read_bytes(), source=run.id)
                _add(tar, run.dir / RECORD, f"{run.id}/{RECORD}")
                for kept in record.samples if samples else ():
                    if (run.dir / kept.file).is_file():
                        _add(tar, run.dir / kept.file, f"{run.id}/{kept.file}")
                count += 1
        partial.replace(target)
    except OSError as error:
        raise RecordError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return count


def take_in(source: Path, store: RunStore) -> Imported:
    """Import a tar of ``export``, a ``record.json``, or a folder of runs. Every record and file is verified first."""
    new: list[str] = []
    known: list[str] = []
    refused: list[tuple[str, str]] = []
    try:
        with contextlib.ExitStack() as stack:
            for run_id, folder in _runs_in(source, stack, refused):
                try:
                    done = _adopt(run_id, folder, store)
                except RecordError as error:
                    refused.append((run_id, error.message))
                    continue
                (new if done else known).append(run_id)
    except (OSError, tarfile.TarError) as error:
        raise RecordError(f"cannot read {source}: {error}") from None
    return Imported(tuple(new), tuple(known), tuple(refused))


def _adopt(run_id: str, folder: Path, store: RunStore) -> bool:
    body = _read(folder / RECORD)
    record = parse_record(body, source=run_id)
    for sentence in contradictions(record):
        raise RecordError(f"{run_id} is not believed: {sentence}")
    present = {kept.file: folder / kept.file for kept in record.samples if _is_plain(folder / kept.file, kept.file)}
    with tempfile.TemporaryDirectory() as scratch:
        marker = Path(scratch) / PRUNED
        if len(present) < len(record.samples):  # exported without them: said, so that nobody takes it for a loss
            missing = [kept.file for kept in record.samples if kept.file not in present]
            write_atomic(marker, f'{{"not imported": {len(missing)}}}\n'.encode())
        checked = verify_run(run_id, folder)
        bad = [f for f in checked.findings if f.kind in ("samples changed", "another run")]
        for finding in bad:
            raise RecordError(finding.message)
        return store.adopt(run_id, body, present | ({PRUNED: marker} if marker.is_file() else {}))


def _runs_in(source: Path, stack: contextlib.ExitStack, refused: list[tuple[str, str]]) -> Iterator[tuple[str, Path]]:
    if source.is_dir():
        folders = [source] if (source / RECORD).is_file() else sorted(p for p in source.iterdir() if p.is_dir())
        for folder in folders:
            if (folder / RECORD).is_file():
                yield _id_of(folder / RECORD), folder
        return
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deployctl-import-")))
    if not tarfile.is_tarfile(source):
        body = _read(source)
        record = parse_record(body, source=str(source))
        (scratch / RECORD).write_bytes(body)
        yield record.run_id, scratch
        return
    found: list[str] = []
    with tarfile.open(source, "r:*") as tar:
        for member in tar:
            run_id, _, name = member.name.partition("/")
            if not member.isfile() or not _PLAIN_RUN_ID.fullmatch(run_id) or not _SAMPLES.fullmatch(name):
                refused.append((member.name[:100], "not a file of a run"))
                continue
            if member.size > (MAX_BYTES if name == RECORD else LARGEST_SAMPLES):
                refused.append((member.name, "too large"))
                continue
            stream = tar.extractfile(member)
            assert stream is not None
            (scratch / run_id).mkdir(exist_ok=True)
            _copy(stream, scratch / run_id / name)
            if run_id not in found:
                found.append(run_id)
    for run_id in found:
        yield run_id, scratch / run_id


def _id_of(path: Path) -> str:
    return parse_record(_read(path), source=str(path)).run_id


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecordError(f"cannot read {path.name}: {error.strerror}") from None


def _copy(stream: IO[bytes], target: Path) -> None:
    with target.open("xb") as out:
        while block := stream.read(1 << 20):
            out.write(block)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tar.gettarinfo(path, arcname=name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    with path.open("rb") as stream:
        tar.addfile(info, stream)


def _is_plain(path: Path, name: str) -> bool:
    return Path(name).name == name and path.is_file() and not path.is_symlink()
