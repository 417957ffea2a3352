"""Keeping a record and rendering its report beside it."""

from __future__ import annotations

from pathlib import Path

from deployctl.records.schema import Record
from deployctl.records.store import RunStore
from deployctl.resources import Project

REPORT = "report.html"


def keep(store: RunStore, record: Record, project: Project) -> Path:
    """Write ``record.json`` (first: it is what cannot be made again) and ``report.html``; returns the report's path."""
    from deployctl.report import html

    store.write(record)
    return store.attach(record.run_id, REPORT, html.render(record, project))
