"""Keeping a record and rendering its report beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deployctl.records.schema import Record
from deployctl.records.store import Run, RunStore
from deployctl.resources import Project

REPORT = "report.html"


@dataclass(frozen=True)
class Outcome:
    """A finished run: its record, and the folder that keeps it."""

    record: Record
    run: Run


def keep(store: RunStore, record: Record, project: Project) -> Path:
    """Write ``record.json`` (first: it is what cannot be made again) and ``report.html``; returns the report's path."""
    from deployctl.report import html

    store.write(record)
    return store.attach(record.run_id, REPORT, html.render(record, project))
