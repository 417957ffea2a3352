"""Every question that is asked of the index, in one place: the command line, the nights, the feeds and later faces."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from deployctl.records.db.engine import transaction
from deployctl.records.db.index import Index, micros, moment, text
from deployctl.records.db.tables import SERIES, documents, nights, probes, runs, validations


@dataclass(frozen=True)
class Series:
    """One question that is asked again and again: the same host, plan, model, workload, SLO and engine."""

    host: str
    plan: str
    model: str
    workload: str
    slo: str
    engine: str

    def __str__(self) -> str:
        names = (self.host, self.plan, self.model, self.workload)
        return " · ".join(name for name in names if name)


@dataclass(frozen=True)
class RunRow:
    """A run as the index has it. Rates in tokens per second, times in seconds, shares of 1; None where not measured."""

    run_id: str
    digest: str
    started_at: datetime
    ended_at: datetime
    series: Series
    status: str
    capacity_status: str
    certified_users: int
    at_most_users: int | None
    confidence: float | None
    limited_by: str
    decode_tokens_per_s: float | None
    prefill_tokens_per_s: float | None
    ttft_s: float | None
    steal_share: float | None
    cpu_mhz: float | None
    facts: Mapping[str, str]
    """What a change may come from: kernel, driver, engine version, model digest, CPU model, settings."""


@dataclass(frozen=True)
class ProbeRow:
    """One probe of a run as the index has it."""

    run_id: str
    users: int
    verdict: str
    requests: int
    attainment: float | None
    attainment_low: float | None
    attainment_high: float | None
    tokens_per_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None


FACTS = ("kernel", "driver", "engine_version", "model_digest", "variant", "cpu_model", "settings")


def recent(
    index: Index,
    *,
    limit: int = 100,
    before: datetime | None = None,
    since: datetime | None = None,
    **wanted: str | None,
) -> list[RunRow]:
    """Return the newest runs first; ``wanted`` filters by the columns of a series (None: any)."""
    query = sa.select(runs).order_by(runs.c.started_us.desc(), runs.c.run_id.desc()).limit(limit)
    for name, value in wanted.items():
        if value is not None:
            query = query.where(runs.c[name] == text(value))
    if before is not None:
        query = query.where(runs.c.started_us < micros(before))
    if since is not None:
        query = query.where(runs.c.started_us >= micros(since))
    return _rows(index, query)


def history(index: Index, series: Series, *, limit: int = 400, since: datetime | None = None) -> list[RunRow]:
    """Return the newest ``limit`` runs of a series, oldest first."""
    query = sa.select(runs).where(*(runs.c[name] == getattr(series, name) for name in SERIES))
    if since is not None:
        query = query.where(runs.c.started_us >= micros(since))
    return _rows(index, query.order_by(runs.c.started_us.desc()).limit(limit))[::-1]


def latest(index: Index, **wanted: str | None) -> list[RunRow]:
    """Return the newest run of every series: the fleet as it stands."""
    newest = sa.select(*(runs.c[name] for name in SERIES), sa.func.max(runs.c.started_us).label("at"))
    for name, value in wanted.items():
        if value is not None:
            newest = newest.where(runs.c[name] == text(value))
    latest_of = newest.group_by(*(runs.c[name] for name in SERIES)).subquery()
    same = [runs.c[name] == latest_of.c[name] for name in SERIES]
    query = sa.select(runs).join(latest_of, sa.and_(*same, runs.c.started_us == latest_of.c.at))
    return _rows(index, query.order_by(runs.c.plan, runs.c.model, runs.c.host))


def probes_of(index: Index, run_ids: Sequence[str]) -> dict[str, list[ProbeRow]]:
    """Return the probes of some runs, in the order in which they were held."""
    found: dict[str, list[ProbeRow]] = {run_id: [] for run_id in run_ids}
    names = list(ProbeRow.__dataclass_fields__)
    with transaction(index.engine) as connection:
        for start in range(0, len(run_ids), 500):
            query = (
                sa.select(*(probes.c[name] for name in names))
                .where(probes.c.run_id.in_(run_ids[start : start + 500]))
                .order_by(probes.c.run_id, probes.c.position)
            )
            for row in connection.execute(query):
                found[row.run_id].append(ProbeRow(**row._mapping))
    return found


def last_times(index: Index) -> dict[tuple[str, str, str], datetime]:
    """Return when each (host, model, workload) was last measured to an end: what is stale."""
    columns = (runs.c.host, runs.c.model, runs.c.workload)
    query = sa.select(*columns, sa.func.max(runs.c.started_us)).group_by(*columns)
    with transaction(index.engine) as connection:
        return {(row[0], row[1], row[2]): moment(row[3]) for row in connection.execute(query)}


def document(index: Index, run_id: str) -> bytes | None:
    """Return ``record.json`` of a run as it was written; None where the index does not have it."""
    with transaction(index.engine) as connection:
        body = connection.execute(sa.select(documents.c.body).where(documents.c.run_id == run_id)).scalar()
    return None if body is None else zlib.decompress(body)


def digests(index: Index) -> dict[str, str]:
    """Return the digest of every run's record, as it was when it was imported."""
    with transaction(index.engine) as connection:
        found = connection.execute(sa.select(runs.c.run_id, runs.c.digest))
        return {run_id: digest for run_id, digest in found}  # noqa: C416


def night_summaries(index: Index, *, limit: int = 30) -> list[dict[str, Any]]:
    """Return the newest nights' summaries, newest first."""
    query = sa.select(nights.c.body).order_by(nights.c.started_us.desc()).limit(limit)
    with transaction(index.engine) as connection:
        return [json.loads(body) for body in connection.execute(query).scalars()]


def validations_of(index: Index, plan: str, *, limit: int = 30) -> list[dict[str, Any]]:
    """Return the newest validations of a plan, newest first."""
    query = (
        sa.select(validations.c.body)
        .where(validations.c.plan == text(plan))
        .order_by(validations.c.ended_us.desc())
        .limit(limit)
    )
    with transaction(index.engine) as connection:
        return [json.loads(body) for body in connection.execute(query).scalars()]


def _rows(index: Index, query: sa.Select[Any]) -> list[RunRow]:
    with transaction(index.engine) as connection:
        return [_row(row) for row in connection.execute(query)]


def _row(row: Any) -> RunRow:
    return RunRow(
        run_id=row.run_id,
        digest=row.digest,
        started_at=moment(row.started_us),
        ended_at=moment(row.ended_us),
        series=Series(*(getattr(row, name) for name in SERIES)),
        status=row.status,
        capacity_status=row.capacity_status,
        certified_users=row.certified_users,
        at_most_users=row.at_most_users,
        confidence=row.confidence,
        limited_by=row.limited_by or "",
        decode_tokens_per_s=row.decode_tokens_per_s,
        prefill_tokens_per_s=row.prefill_tokens_per_s,
        ttft_s=row.ttft_s,
        steal_share=row.steal_share,
        cpu_mhz=row.cpu_mhz,
        facts={name: value for name in FACTS if (value := getattr(row, name))},
    )
