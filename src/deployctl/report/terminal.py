"""A record on a terminal: 80 columns, readable without colour, and in plain ASCII where the terminal asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from deployctl.records.schema import Record
from deployctl.records.store import RunEntry
from deployctl.report import view, words
from deployctl.units import format_bytes, format_seconds

_TONES = {"good": "bold green", "mixed": "bold yellow", "bad": "bold red", "none": "bold"}
_VERDICTS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "inconclusive": ("?", "yellow"), "invalid": ("!", "dim")}
_STRIP = 17  # cells of the little plot of the attainment's interval
_ASCII = str.maketrans(
    {
        "✓": "+", "✗": "x", "–": "-", "—": "-", "…": "~", "“": '"', "”": '"', "∞": "inf", "×": "x",
        "·": "-", "≥": ">=", "●": "o", "─": "-", "│": "|", "┆": ":", "┼": ":", "◂": "<", "\u00a0": " ",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """Where the attainment's axis begins (a share of 1; it ends at 1) and where the target is."""

    floor: float
    target: float

    def cell(self, share: float) -> int:
        """The cell of a share, from 0; a share below the axis is at its start."""
        return max(0, min(_STRIP - 1, round((share - self.floor) / (1 - self.floor) * (_STRIP - 1))))


class _View:
    """Rich asks for the content once it knows what the terminal can show."""

    def __init__(self, record: Record, width: int) -> None:
        self._record = record
        self._width = width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self._width, options.max_width)
        content = _content(self._record, ascii_only=options.ascii_only)
        yield from console.render(content, options.update(width=width))


class _Runs:
    def __init__(self, entries: Sequence[RunEntry]) -> None:
        self._entries = entries

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(_runs(self._entries, ascii_only=options.ascii_only), options)


def render(record: Record, width: int = 80) -> RenderableType:
    """Return the summary of a run for a Rich console, at most ``width`` columns wide."""
    return _View(record, width)


def runs(entries: Sequence[RunEntry]) -> RenderableType:
    """Return the list of runs, one line each, as a table for a Rich console."""
    return _Runs(entries)


def _content(record: Record, *, ascii_only: bool) -> Group:
    def text(content: str, style: str = "") -> Text:
        return Text(_fit(content, ascii_only), style)

    said = words.answer(record)
    parts: list[RenderableType] = [text(said.headline, _TONES[said.tone]), text(said.detail)]
    if promise := words.promise(record):
        parts.append(text(promise))
    if record.problem is not None and record.problem.hint:
        parts.append(text(f"Next: {words.clean(record.problem.hint)}", "bold"))
    if record.probes:
        parts += [text(""), _probes(record, ascii_only=ascii_only)]
        said_of = [(row.users, "; ".join(row.remarks)) for row in view.probe_rows(record) if row.remarks]
        parts += [Padding(text(f"{words.users(count)}: {remark}", "dim"), (0, 0, 0, 2)) for count, remark in said_of]
    parts += [text(""), _facts(_summary(record), ascii_only=ascii_only)]
    parts += [text(""), text("Not shown by this run:", "bold")]
    parts += [Padding(text(f"- {entry}", "dim"), (0, 0, 0, 2)) for entry in words.not_proven(record)]
    if notes := view.remarks(record):
        parts += [text(""), text("Notes:", "bold")]
        parts += [Padding(text(f"- {note}"), (0, 0, 0, 2)) for note in notes]
    return Group(*parts)


def _probes(record: Record, *, ascii_only: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    plot = _plot(record)
    scale = f"{words.percent(plot.floor)}".ljust(_STRIP - 5) + "100 %"
    for title, justify in (
        ("users", "right"), ("", "left"), ("met SLO", "right"), (scale, "left"), ("TTFT p95", "right"),
        ("TPOT p95", "right"), ("tokens/s", "right"),
    ):  # fmt: skip
        table.add_column(_fit(title, ascii_only), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in view.probe_rows(record):
        sign, colour = _VERDICTS[row.verdict]
        probe = record.probes[row.order - 1]
        strip = _strip(plot, probe.attainment_low, probe.attainment, probe.attainment_high)
        cells = (
            f"{row.users:,}",
            f"{sign} {row.label}",
            row.attainment,
            strip,
            row.ttft[1],
            row.tpot,
            row.tokens_per_s,
        )
        styles = ("bold", colour, "", colour, "", "", "")
        table.add_row(*(Text(_fit(cell, ascii_only), style) for cell, style in zip(cells, styles, strict=True)))
    return table


def _plot(record: Record) -> Plot:
    lows = [low for probe in record.probes if (low := probe.attainment_low) is not None]
    # Below 80 % the exact place says little, and the target, near the right, deserves the cells.
    floor = max(0.8, min([*lows, record.slo.attainment - 0.05])) if record.slo.attainment > 0.8 else 0.0
    return Plot(int(floor * 100) / 100, record.slo.attainment)


def _strip(plot: Plot, low: float | None, middle: float | None, high: float | None) -> str:
    cells = [" "] * _STRIP
    cells[plot.cell(plot.target)] = "┆"
    if low is not None and high is not None and high >= plot.floor:
        for index in range(plot.cell(low), plot.cell(high) + 1):
            cells[index] = "┼" if index == plot.cell(plot.target) else "─"
    if low is not None and low < plot.floor:
        cells[0] = "◂"
    if middle is not None and middle >= plot.floor:
        cells[plot.cell(middle)] = "●"
    return "".join(cells)


def _summary(record: Record) -> Iterable[tuple[str, str]]:
    yield "SLO", words.slo(record.slo)
    yield "Workload", words.workload(record.workload)
    model, host, sizing = record.model, record.host, record.sizing
    size = format_bytes(model.bytes) if model.bytes is not None else ""
    yield "Model", ", ".join(part for part in (model.name, model.variant or "", size) if part)
    version = f" {record.deployment.ollama_version}" if record.deployment.ollama_version else ""
    yield "Engine", words.engine(record.deployment.engine) + version
    if host is not None:
        cpus = f"{host.cpus} CPUs" if host.cpus is not None else ""
        ram = f"{format_bytes(host.ram_bytes)} RAM" if host.ram_bytes is not None else ""
        gpus = ", ".join(gpu.model for gpu in host.gpus)
        yield "Host", ", ".join(part for part in (host.name, host.os or "", cpus, ram, gpus) if part)
    if sizing is not None:
        yield "Slots", f"{sizing.slots} of {sizing.context:,} tokens each"
        parts = ", ".join(f"{row.label} {row.text}" for row in view.memory_rows(record))
        whole = f" of {format_bytes(sizing.bytes.available)}" if sizing.bytes.available is not None else ""
        yield "Memory", f"{format_bytes(sizing.bytes.total)}{whole} as sized ({parts})" if parts else ""
    base = record.baseline
    if base is not None:
        rate = f", {base.decode_tokens_per_s:,.1f} tokens/s" if base.decode_tokens_per_s is not None else ""
        yield "One user", f"first token after {words.latency(base.ttft_s)}{rate}"
    spent = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in record.timings.items() if seconds >= 1)
    yield "Time", spent
    yield "Run", record.run_id


def _facts(rows: Iterable[tuple[str, str]], *, ascii_only: bool) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        if value:
            table.add_row(Text(label), Text(_fit(words.clean(value, 1000), ascii_only)))
    return table


def _runs(entries: Sequence[RunEntry], *, ascii_only: bool) -> RenderableType:
    if not entries:
        return Text("No runs yet.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    table.add_column("run", no_wrap=True, min_width=21)
    table.add_column("plan", overflow="ellipsis", no_wrap=True, max_width=13)
    table.add_column("model", overflow="ellipsis", no_wrap=True, max_width=16)
    table.add_column("users", justify="right", no_wrap=True, min_width=5)
    table.add_column("result", overflow="fold")
    for entry in entries:
        cells, style = _run_cells(entry)
        styles = ("", "", "", "bold", style)
        table.add_row(*(Text(_fit(cell, ascii_only), look) for cell, look in zip(cells, styles, strict=True)))
    return table


def _run_cells(entry: RunEntry) -> tuple[tuple[str, str, str, str, str], str]:
    record = entry.record
    if record is None:
        problem = f": {words.clean(entry.problem, 160)}" if entry.problem else ""
        return (entry.id, "", "", "", entry.state + problem), "yellow" if entry.state == "running" else "red"
    plan, model = words.subject(record), words.clean(record.model.name, 60)
    return (entry.id, plan, model, words.short(record.capacity), _outcome(record)), _TONES[
        words.answer(record).tone
    ].removeprefix("bold ")


def _outcome(record: Record) -> str:
    said = words.STATUSES[record.capacity.status]
    return said if record.status == "finished" else f"{said}, {record.status}"


def _fit(content: str, ascii_only: bool) -> str:
    if not ascii_only:
        return content
    return content.translate(_ASCII).encode("ascii", "replace").decode("ascii")
