"""What may be thrown away: raw requests first, runs much later, never what a plan is sold by. Changes no file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from deployctl.records.store import RunEntry


@dataclass(frozen=True)
class Policy:
    """How long things are kept, in days; None: for ever."""

    samples_days: float | None = 90
    runs_days: float | None = None


@dataclass(frozen=True)
class Removal:
    """One thing to be removed, and why."""

    run_id: str
    what: Literal["samples", "run"]
    reason: str


def choose(entries: Iterable[RunEntry], policy: Policy, now: datetime) -> list[Removal]:
    """Say what to remove, oldest first.

    Kept whatever its age: the newest certified run of each series (what is sold stands on it), a run that is still
    going on, and a run that cannot be read (somebody has to look at it).
    """
    listed = sorted(entries, key=lambda entry: entry.id)
    newest: dict[tuple[str, ...], str] = {}
    for entry in listed:
        if entry.record is not None and entry.record.capacity.status in ("certified", "at_least"):
            newest[_series(entry)] = entry.id
    sacred = set(newest.values())
    found: list[Removal] = []
    for entry in listed:
        if entry.id in sacred or entry.state in ("running", "broken"):
            continue
        age = now - _started(entry)
        if policy.runs_days is not None and age > timedelta(days=policy.runs_days):
            found.append(Removal(entry.id, "run", f"{age.days} days old"))
        elif policy.samples_days is not None and age > timedelta(days=policy.samples_days):
            if entry.state == "unfinished":
                found.append(Removal(entry.id, "run", f"interrupted {age.days} days ago"))
            elif entry.record is not None and any((entry.dir / kept.file).is_file() for kept in entry.record.samples):
                found.append(Removal(entry.id, "samples", f"{age.days} days old"))
    return found


def _started(entry: RunEntry) -> datetime:
    if entry.record is not None:
        return entry.record.started_at
    return datetime.strptime(entry.id[:16] + "+0000", "%Y%m%dT%H%M%SZ%z")


def _series(entry: RunEntry) -> tuple[str, ...]:
    record = entry.record
    assert record is not None
    plan = record.plan.id if record.plan else ""
    host = record.host.name if record.host else ""
    return (host, plan, record.model.name, record.workload.name, record.slo.name or "", record.deployment.engine)
