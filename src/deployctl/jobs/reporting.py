"""Keeping a record and rendering its report beside it."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.errors import DeployctlError
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


def keep(store: RunStore, record: Record, project: Project) -> str:
    """Write ``record.json`` (first: it is what cannot be made again) and ``report.html``.

    Returns why that failed, or "": a measurement of hours is shown even where the disk is full.
    """
    from deployctl.report import html

    try:
        store.write(record)
        store.attach(record.run_id, REPORT, html.render(record, project))
    except DeployctlError as error:
        return error.message
    except OSError as error:
        return f"the record could not be kept: {error}"
    return ""
