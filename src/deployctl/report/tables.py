"""Lists and comparisons on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployctl.records.compare import Comparison, UsersChange
from deployctl.report import words

if TYPE_CHECKING:
    from deployctl.records.db.queries import RunRow

_DIRECTIONS = {
    "more": "proven to hold more",
    "fewer": "proven to hold fewer",
    "equal": "the same",
    "not decided": "the difference is not decided",
}


def runs(rows: Sequence[RunRow]) -> RenderableType:
    """The index's runs, one line each."""
    if not rows:
        return Text("No runs.")
    table = _table(("run", "left"), ("host", "left"), ("plan", "left"), ("model", "left"), ("workload", "left"),
                   ("users", "right"), ("result", "left"))  # fmt: skip
    for row in rows:
        series = row.series
        most = f" to {row.at_most_users}" if (row.at_most_users or 0) > row.certified_users else ""
        cells = (row.run_id, series.host, series.plan, series.model, series.workload, f"{row.certified_users}{most}")
        table.add_row(*(words.clean(cell, 60) for cell in cells), words.STATUSES[row.capacity_status])
    return table


def comparison(found: Comparison) -> RenderableType:
    """Two runs side by side."""
    parts: list[RenderableType] = [Text(f"{found.before} → {found.after}", "bold")]
    parts += [Text(f"! {words.clean(obstacle)}: these runs answer different questions", "yellow")
              for obstacle in found.obstacles]  # fmt: skip
    parts.append(Text(_users(found.users) if found.users else "one of the runs gives no capacity"))
    if found.attainment:
        table = _table(("users", "right"), ("met SLO", "right"), ("then", "right"), ("difference", "right"),
                       ("interval", "left"), ("", "left"))  # fmt: skip
        for change in found.attainment:
            table.add_row(
                str(change.users),
                words.percent(change.before),
                words.percent(change.after),
                f"{100 * change.difference:+.1f} points",
                f"{100 * change.low:+.1f} to {100 * change.high:+.1f}",
                "" if change.decided else "not decided",
            )
        parts.append(table)
    if found.changed:
        table = _table(("what else changed", "left"), ("before", "left"), ("after", "left"))
        for changed in found.changed:
            table.add_row(*(words.clean(text, 60) for text in (changed.name, changed.before, changed.after)))
        parts.append(table)
    return Group(*parts)


def _users(change: UsersChange) -> str:
    low = "no bound" if change.low is None else f"{change.low:+d}"
    high = "no bound" if change.high is None else f"{change.high:+d}"
    return (
        f"certified users {change.before} → {change.after} ({change.certified:+d}); "
        f"the true change lies between {low} and {high}: {_DIRECTIONS[change.direction]}"
    )


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for title, justify in columns:
        table.add_column(title, justify=justify, overflow="fold", no_wrap=title == "run")  # type: ignore[arg-type]
    return table
