"""Putting records into the index, and bringing it level with the files. What it was told once never changes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from deployctl.errors import RecordError
from deployctl.records.db import tables
from deployctl.records.db.engine import migrate, open_engine, store_url, transaction
from deployctl.records.integrity import contradictions
from deployctl.records.schema import MAX_BYTES, Record, parse_record
from deployctl.records.store import RECORD, RunStore

_LARGEST = 2**63 - 1
_TEXT = 1000  # names are for people; a longer one is cut in the index, never in the record


@dataclass(frozen=True)
class Synced:
    """What ``sync`` did: runs that were imported, and runs that were refused, each with the reason."""

    imported: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


class Index:
    """The database. A context manager; opening it brings its tables up to date. Raises StoreUnavailable."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @classmethod
    def open(cls, data_dir: Path) -> Self:
        """Open the index that belongs to a data directory, or the shared one that the environment names."""
        engine = open_engine(store_url(data_dir))
        try:
            migrate(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self.engine.dispose()

    def add(self, body: bytes, *, source: str = "record") -> bool:
        """Import one record as it was written; False: it was there already.

        Raises RecordError for a record that is not believed, or when another record of that run is known, and
        StoreUnavailable. Of two processes that import one record at once, one does.
        """
        record = believed(body, source=source)
        with transaction(self.engine, write=True) as connection:
            known = connection.execute(
                sa.select(tables.runs.c.digest).where(tables.runs.c.run_id == record.run_id)
            ).scalar()
            if known is not None:
                return _same(known, record)
            try:
                with connection.begin_nested():
                    _insert(connection, record, body)
            except sa.exc.IntegrityError:  # PostgreSQL: another process was quicker
                known = connection.execute(
                    sa.select(tables.runs.c.digest).where(tables.runs.c.run_id == record.run_id)
                ).scalar_one()
                return _same(known, record)
        return True

    def sync(self, store: RunStore, *, progress: Callable[[int, int], None] | None = None) -> Synced:
        """Import every record on disk that the index does not know: what was written while it was out of reach."""
        on_disk = store.recorded()
        missing = sorted(on_disk.keys() - self.known())
        imported, refused = [], []
        for count, run_id in enumerate(missing, 1):
            try:
                with (on_disk[run_id] / RECORD).open("rb") as file:
                    body = file.read(MAX_BYTES + 1)
                if self.add(body, source=str(on_disk[run_id] / RECORD)):
                    imported.append(run_id)
            except (RecordError, OSError) as error:
                refused.append((run_id, getattr(error, "message", str(error))))
            if progress is not None:
                progress(count, len(missing))
        return Synced(tuple(imported), tuple(refused))

    def known(self) -> set[str]:
        """The ids of all runs in the index."""
        with transaction(self.engine) as connection:
            return set(connection.execute(sa.select(tables.runs.c.run_id)).scalars())

    def forget(self, run_ids: tuple[str, ...]) -> int:
        """Remove runs (retention); returns how many there were."""
        removed = 0
        with transaction(self.engine, write=True) as connection:
            for start in range(0, len(run_ids), 500):
                chunk = run_ids[start : start + 500]
                removed += connection.execute(sa.delete(tables.runs).where(tables.runs.c.run_id.in_(chunk))).rowcount
        return removed

    def put_night(
        self, night_id: str, started_at: datetime, ended_at: datetime | None, summary: Mapping[str, Any]
    ) -> None:
        """Keep a night's summary, in place of an earlier one of the same night."""
        row = {"started_us": micros(started_at), "ended_us": micros(ended_at) if ended_at else None}
        self._replace(tables.nights, tables.nights.c.night_id, night_id, {**row, "body": json.dumps(summary)})

    def put_validation(self, validation_id: str, ended_at: datetime, plan: str, verdict: str, body: str) -> None:
        """Keep a validation."""
        row = {"ended_us": micros(ended_at), "plan": text(plan), "verdict": verdict, "body": body}
        self._replace(tables.validations, tables.validations.c.validation_id, validation_id, row)

    def _replace(self, table: sa.Table, key: sa.Column[Any], value: str, row: dict[str, Any]) -> None:
        with transaction(self.engine, write=True) as connection:
            connection.execute(sa.delete(table).where(key == value))
            connection.execute(sa.insert(table).values({key.name: value, **row}))


def believed(body: bytes, *, source: str) -> Record:
    """Read a record and refuse one that was edited or contradicts itself. Raises RecordError."""
    record = parse_record(body, source=source)
    for sentence in contradictions(record):
        raise RecordError(f"{source} is not believed: {sentence}", hint="deployctl records verify")
    return record


def micros(moment: datetime) -> int:
    """A time as the tables keep it."""
    return round(moment.timestamp() * 1e6)


def moment(micros_: int) -> datetime:
    """The inverse of ``micros``."""
    return datetime.fromtimestamp(micros_ / 1e6, UTC)


def text(value: str | None) -> str:
    """A name as a text column can hold it: PostgreSQL takes neither NUL nor half a surrogate pair."""
    return (value or "").encode("utf-8", "replace").decode("utf-8").replace("\0", "�")[:_TEXT]


def series_of(record: Record) -> dict[str, str]:
    """The columns that make two runs answers to one question."""
    found = {
        "host": record.host.name if record.host else "",
        "plan": record.plan.id if record.plan else "",
        "model": record.model.name,
        "workload": record.workload.name,
        "slo": record.slo.name,
        "engine": record.deployment.engine,
    }
    return {name: text(found[name]) for name in tables.SERIES}


def _same(known: str, record: Record) -> bool:
    if known != record.digest:
        raise RecordError(f"the store knows another record of run {record.run_id}", hint="deployctl records verify")
    return False


def _insert(connection: sa.Connection, record: Record, body: bytes) -> None:
    run = {"run_id": record.run_id}
    connection.execute(sa.insert(tables.runs).values(_run_row(record)))
    rows = [_probe_row(record, position) for position in range(len(record.probes))]
    if rows:
        connection.execute(sa.insert(tables.probes), rows)
    connection.execute(sa.insert(tables.documents).values(**run, body=zlib.compress(body, 6)))


def _run_row(record: Record) -> dict[str, Any]:
    capacity, base, host = record.capacity, record.baseline, record.host
    drivers = sorted({gpu.driver for gpu in host.gpus if gpu.driver}) if host else []
    return {
        "run_id": record.run_id,
        "digest": record.digest,
        "started_us": micros(record.started_at),
        "ended_us": micros(record.ended_at),
        **series_of(record),
        "status": record.status,
        "capacity_status": capacity.status,
        "certified_users": min(capacity.certified_users, _LARGEST),
        "at_most_users": None if capacity.at_most_users is None else min(capacity.at_most_users, _LARGEST),
        "confidence": capacity.confidence,
        "limited_by": text(capacity.limited_by),
        "decode_tokens_per_s": base.decode_tokens_per_s if base else None,
        "prefill_tokens_per_s": base.prefill_tokens_per_s if base else None,
        "ttft_s": base.ttft_s if base else None,
        "variant": text(record.model.variant),
        "model_digest": text(record.model.digest),
        "engine_version": text(record.deployment.ollama_version),
        "kernel": text(host.kernel if host else None),
        "driver": text(", ".join(drivers)),
        "cpu_model": text(host.cpu_model if host else None),
        "settings": text(json.dumps(record.deployment.settings, sort_keys=True)),
        "steal_share": _number(record.telemetry.get("steal_share")),
        "cpu_mhz": _number(record.telemetry.get("cpu_mhz_mean")),
        "imported_us": micros(datetime.now(UTC)),
    }


def _probe_row(record: Record, position: int) -> dict[str, Any]:
    probe = record.probes[position]
    return {
        "run_id": record.run_id,
        "position": position,
        "users": min(probe.users, _LARGEST),
        "verdict": probe.verdict,
        "requests": min(probe.requests, _LARGEST),
        "attainment": probe.attainment,
        "attainment_low": probe.attainment_low,
        "attainment_high": probe.attainment_high,
        "tokens_per_s": probe.tokens_per_s,
        "ttft_p50_s": probe.ttft_s.p50 if probe.ttft_s else None,
        "ttft_p95_s": probe.ttft_s.p95 if probe.ttft_s else None,
        "tpot_p50_s": probe.tpot_s.p50 if probe.tpot_s else None,
        "tpot_p95_s": probe.tpot_s.p95 if probe.tpot_s else None,
        "seconds": probe.seconds,
    }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
