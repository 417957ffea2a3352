"""A record as one self-contained HTML file: no script, no font, no request to anywhere."""

from __future__ import annotations

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from deployctl.records.schema import Record
from deployctl.report import charts, view, words
from deployctl.resources import Project
from deployctl.units import format_bytes

TEMPLATE = "report.html.j2"


def render(record: Record, project: Project) -> str:
    """Return the report of ``record`` as HTML, from the project's ``templates/report.html.j2`` and what it includes.

    Every string of the record is escaped and shown on one line, whatever it holds. Raises jinja2.TemplateError for a
    template of the project's own that is wrong.
    """
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(lambda name: _template(project, name)),
        undefined=StrictUndefined,
        finalize=_showable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sizes = record.sizing.bytes if record.sizing is not None else None
    drawn = (
        ("Requests that met the SLO", charts.attainment(record), True),
        ("Time to first token", charts.ttft(record), False),
        ("Time per output token", charts.tpot(record), False),
        ("Tokens per second, all users", charts.throughput(record), False),
    )
    return environment.get_template(TEMPLATE).render(
        record=record,
        answer=words.answer(record),
        limit=words.limit(record.capacity.limited_by) if record.capacity.limited_by else "",
        confidence=words.percent(record.capacity.confidence) if record.capacity.confidence is not None else "",
        promise=words.promise(record),
        slo=words.slo(record.slo),
        target=words.percent(record.slo.attainment),
        undecided=(record.capacity.at_most_users or 0) > record.capacity.certified_users > 0,
        workload=words.workload(record.workload),
        charts=[(title, drawing, key) for title, drawing, key in drawn if drawing is not None],
        probes=view.probe_rows(record),
        baseline=view.baseline_rows(record),
        machine=view.machine_rows(record),
        model=view.model_rows(record),
        settings=view.settings_rows(record),
        conditions=view.condition_rows(record),
        timings=view.timing_rows(record),
        memory=_memory(record),
        memory_total=format_bytes(sizes.total) if sizes else "",
        memory_available=format_bytes(sizes.available) if sizes and sizes.available is not None else "",
        remarks=view.remarks(record),
        not_proven=words.not_proven(record),
    )


def _template(project: Project, name: str) -> str | None:
    try:
        return project.path(f"templates/{name}").read_text("utf-8")
    except FileNotFoundError:
        return None


def _showable(value: object) -> object:
    # Runs on whatever a template prints. Markup is ours and stays; plain text may hold anything.
    return words.clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _memory(record: Record) -> list[tuple[view.MemoryRow, float]]:
    """The parts of the memory, each with its share of what is available (or of the total) in percent."""
    rows = view.memory_rows(record)
    sizes = record.sizing.bytes if record.sizing is not None else None
    whole = max((sizes.available or 0, sum(row.size for row in rows))) if sizes else 0
    return [(row, 100 * row.size / whole) for row in rows]
