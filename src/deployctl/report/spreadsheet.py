"""Runs as CSV for a spreadsheet, in which no name can become a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from deployctl.report.words import clean

if TYPE_CHECKING:
    from deployctl.records.db.queries import RunRow

Cell = str | int | float | None
RUN_COLUMNS = (
    "run_id", "started_at", "host", "plan", "model", "workload", "slo", "engine", "status", "capacity_status",
    "certified_users", "at_most_users", "confidence", "limited_by", "decode_tokens_per_s", "prefill_tokens_per_s",
    "ttft_s", "steal_share", "cpu_mhz", "engine_version", "model_digest", "kernel", "driver", "cpu_model", "variant",
    "digest",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "|", "%", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the full-width ones count in Excel


def flat(row: RunRow) -> dict[str, Cell]:
    """A run as one row: the columns of ``RUN_COLUMNS``."""
    series = {name: getattr(row.series, name) for name in ("host", "plan", "model", "workload", "slo", "engine")}
    facts = {name: row.facts.get(name) for name in ("engine_version", "model_digest", "kernel", "driver", "cpu_model")}
    values = {**series, **facts, "variant": row.facts.get("variant")}
    found = {name: values[name] if name in values else getattr(row, name) for name in RUN_COLUMNS}
    return {name: _plain(value) for name, value in found.items()}


def render(rows: Iterable[Mapping[str, Cell]], columns: Sequence[str]) -> str:
    """Return CSV (RFC 4180, CRLF) with a line of column names. Numbers stay numbers; text is made harmless."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_MINIMAL, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return out.getvalue()


def _plain(value: object) -> Cell:
    if isinstance(value, datetime):
        return value.isoformat()
    assert value is None or isinstance(value, str | int | float)
    return value


def _cell(value: Cell) -> Cell:
    """One cell. Text that a spreadsheet would take for a formula gets an apostrophe in front (OWASP, CSV injection).

    A quoted cell is still a formula, and white space before the sign does not help, so both are looked through.
    """
    if not isinstance(value, str):
        return "" if value is None else value
    shown = clean(value, 1000)
    return f"'{shown}" if shown.lstrip(" \u00a0\"'").startswith(_FORMULA) else shown
