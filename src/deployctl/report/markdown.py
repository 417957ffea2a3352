"""A record as Markdown (GitHub's flavour), for a ticket or a chat. Nothing in a record can become markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deployctl.records.schema import Record
from deployctl.report import view, words
from deployctl.units import format_bytes

# What starts markup inside a line, and what GitHub links by itself; nothing of a record ever begins a line.
_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~$@&]|:(?=//)|\.(?<=www\.)", re.IGNORECASE)
_HEADERS = ("Users", "Verdict", "Met SLO", "Interval", "Requests", "TTFT p50 / p95 / p99", "TPOT p95", "Tokens/s")


def render(record: Record) -> str:
    """Return the summary of a run as Markdown text, ending in a newline."""
    said = words.answer(record)
    lines = [f"# {escape(said.headline)}", "", escape(said.detail)]
    if promise := words.promise(record):
        lines += ["", escape(promise)]
    lines += [
        "",
        f"**SLO:** {escape(words.slo(record.slo))}",
        "",
        f"**Workload:** {escape(words.workload(record.workload))}",
    ]
    if record.probes:
        lines += ["", "## Probes", "", *_table(_HEADERS, [_cells(row) for row in view.probe_rows(record)])]
        said_of = [(row.users, "; ".join(row.remarks)) for row in view.probe_rows(record) if row.remarks]
        lines += ["", *(f"- {words.users(count)}: {escape(remark)}" for count, remark in said_of)]
    if memory := view.memory_rows(record):
        lines += ["", "## Memory, as sized", "", *_table(("Part", "Size"), [(row.label, row.text) for row in memory])]
        sizes = record.sizing.bytes if record.sizing is not None else None
        if sizes is not None:
            whole = f" of {format_bytes(sizes.available)}" if sizes.available is not None else ""
            lines += ["", f"Total {format_bytes(sizes.total)}{whole}."]
    lines += ["", "## Conditions", ""]
    rows = (*view.machine_rows(record), *view.model_rows(record), *view.settings_rows(record))
    lines += [f"- {escape(label)}: {escape(value)}" for label, value in (*rows, *view.condition_rows(record))]
    if timings := view.timing_rows(record):
        lines += ["", "## Time spent", "", *(f"- {escape(label)}: {escape(value)}" for label, value in timings)]
    lines += ["", "## What this run does not show", "", *(f"- {escape(entry)}" for entry in words.not_proven(record))]
    if notes := view.remarks(record):
        lines += ["", "## Notes", "", *(f"- {escape(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Return ``text`` on one line with everything escaped that Markdown or HTML could take for markup."""
    return _SPECIAL.sub(r"\\\g<0>", words.clean(text, 1000))


def _cells(row: view.ProbeRow) -> tuple[str, ...]:
    ttft = " / ".join(row.ttft)
    return (f"{row.users}", row.label, row.attainment, row.interval, row.requests, ttft, row.tpot, row.tokens_per_s)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return lines + ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
