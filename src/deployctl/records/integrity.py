"""Whether a kept run is what was written: the record's seal, its own logic, and the raw requests beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deployctl.errors import RecordError
from deployctl.records.digest import KEY
from deployctl.records.schema import MAX_BYTES, Record, parse_record
from deployctl.records.store import RECORD

Kind = Literal[
    "missing", "truncated", "edited", "unreadable", "another run", "contradiction", "samples missing",
    "samples changed", "not as stored", "unsealed", "samples pruned",
]  # fmt: skip
HARMLESS: frozenset[Kind] = frozenset({"unsealed", "samples pruned"})
PRUNED = "pruned.json"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be, by kind and in words. The harmless kinds are worth knowing only."""

    kind: Kind
    message: str


@dataclass(frozen=True)
class Verified:
    """What was found of one run. ``digest`` is that of the record's content, "" where it cannot be read."""

    run_id: str
    digest: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the run may be believed."""
        return all(finding.kind in HARMLESS for finding in self.findings)


def verify_run(run_id: str, folder: Path, *, stored_digest: str | None = None) -> Verified:
    """Hold the files of a run against the seal, against each other and against what the store was told.

    ``stored_digest`` is the record's digest as the store knows it: it also finds an edit whose author made the digest
    anew. Reads every file of raw requests once.
    """
    path = folder / RECORD
    try:
        data = path.read_bytes()
    except OSError as error:
        return Verified(run_id, "", (Finding("missing", f"cannot read {path}: {error.strerror}"),))
    if len(data) > MAX_BYTES:
        return Verified(run_id, "", (Finding("unreadable", f"{path} is too large for a record"),))
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        kind: Kind = "unreadable" if data.rstrip().endswith(b"}") else "truncated"
        return Verified(run_id, "", (Finding(kind, f"{path} is no whole JSON document: {error}"),))
    try:
        record = parse_record(data, source=str(path))
    except RecordError as error:
        kind = "edited" if "edited" in error.message else "unreadable"
        return Verified(run_id, "", (Finding(kind, error.message),))
    findings = list(_problems(record, run_id, folder))
    sealed = isinstance(document, dict) and KEY in document
    digest = str(document[KEY]) if sealed else record.digest
    if not sealed:
        findings.append(Finding("unsealed", "the record is of schema version 1, which has no digest"))
    if stored_digest is not None and stored_digest != digest:
        findings.append(Finding("not as stored", f"the store was told of another record: digest {stored_digest[:16]}…"))
    return Verified(run_id, digest, tuple(findings))


def contradictions(record: Record) -> Iterator[str]:
    """What a record says of itself that cannot all be true: a digest can be made anew, evidence less easily. Pure."""
    capacity, probes = record.capacity, record.probes
    if record.ended_at < record.started_at:
        yield "the run ended before it began"
    if capacity.status in ("certified", "at_least"):
        proof = [p for p in probes if p.verdict == "pass" and p.users >= capacity.certified_users]
        if not proof:
            yield f"{capacity.certified_users} users are certified, and no probe passed with so many"
    if capacity.status == "not_met" and not any(p.verdict == "fail" for p in probes):
        yield "the SLO is said not to be met, and no probe failed"
    if capacity.status != "invalid":
        beyond = [p.users for p in probes if p.verdict == "pass" and p.users > capacity.certified_users]
        if beyond:
            yield f"a probe passed with {max(beyond)} users, and only {capacity.certified_users} are certified"
    for probe in probes:
        if probe.verdict in ("pass", "fail") and probe.requests == 0:
            yield f"the probe of {probe.users} users was decided without a request"
        if probe.verdict in ("pass", "fail") and probe.invalid_reasons:
            yield f"the probe of {probe.users} users counts, and has reasons not to"
        share, low, high = probe.attainment, probe.attainment_low, probe.attainment_high
        if share is not None and low is not None and high is not None and not low - 1e-9 <= share <= high + 1e-9:
            yield f"the attainment of the probe of {probe.users} users lies outside its own interval"
        if probe.verdict == "pass" and high is not None and high < record.slo.attainment:
            yield f"the probe of {probe.users} users passed, and its interval lies below the target"
        if probe.verdict == "fail" and low is not None and low > record.slo.attainment:
            yield f"the probe of {probe.users} users failed, and its interval lies above the target"


def _problems(record: Record, run_id: str, folder: Path) -> Iterator[Finding]:
    if record.run_id != run_id:
        yield Finding("another run", f"the folder of {run_id} holds the record of {record.run_id}")
    for sentence in contradictions(record):
        yield Finding("contradiction", sentence)
    pruned = (folder / PRUNED).is_file()
    for samples in record.samples:
        path = folder / samples.file
        if Path(samples.file).name != samples.file or not path.is_file() or path.is_symlink():
            if pruned:
                yield Finding("samples pruned", f"{samples.file} was pruned; only its digest is left")
            else:
                yield Finding("samples missing", f"{samples.file} is not beside the record")
        elif samples.sha256 is not None and _sha256(path) != samples.sha256:
            yield Finding("samples changed", f"{samples.file} is not the file that the record names")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
