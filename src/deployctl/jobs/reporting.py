"""Keeping a record and rendering its report beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deployctl.errors import DeployctlError
from deployctl.events import Emit, Warned, discard
from deployctl.records.schema import Record
from deployctl.records.store import Run, RunStore
from deployctl.resources import Project

REPORT = "report.html"


@dataclass(frozen=True)
class Outcome:
    """A finished run: its record, and the folder that keeps it."""

    record: Record
    run: Run
    problem: str = ""  # why it could not be kept


def keep(store: RunStore, record: Record, project: Project, emit: Emit = discard) -> str:
    """Write ``record.json`` (first: it is what cannot be made again) and ``report.html``; then index it.

    Returns why that failed, or "": a measurement of hours is shown even where the disk is full.
    """
    from deployctl.report import html

    try:
        path = store.write(record)
        store.attach(record.run_id, REPORT, html.render(record, project))
    except DeployctlError as error:
        return error.message
    except OSError as error:
        return f"the record could not be kept: {error}"
    index_run(store, path, emit)
    return ""


def index_run(store: RunStore, path: Path, emit: Emit = discard) -> bool:
    """Tell the index of a record, and of those that it missed; a database that is away is warned of and no failure."""
    from deployctl.records.db.index import Index

    try:
        with Index.open(store.root.parent) as index:
            index.add(path.read_bytes(), source=str(path))
            index.sync(store)
    except (DeployctlError, OSError) as error:
        message = error.message if isinstance(error, DeployctlError) else str(error)
        emit(Warned(f"not in the index yet: {message}"))
        return False
    return True
