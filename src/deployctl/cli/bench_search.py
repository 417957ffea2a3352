"""deployctl bench-search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployctl.cli.app import globals_of
from deployctl.errors import UsageError


def command(
    ctx: typer.Context,
    scenarios: Annotated[Path, typer.Option("--scenarios", help="A folder of scenario files.", file_okay=False)],
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches per scenario.")] = 20,
    rule: Annotated[
        str, typer.Option("--rule", help="search (ours), or a peer's rule, such as bisect-n300.")
    ] = "search",
    sold: Annotated[
        bool, typer.Option("--sold", help="Ask yes or no at numbers a fifth off the capacity instead of searching it.")
    ] = False,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes (default: all cores).")] = None,
) -> None:
    """Hold the capacity search against simulated servers whose capacity is known, and count its errors."""
    from rich.table import Table

    from deployctl.cli.output import print_json, stdout_console
    from deployctl.simulator.bench import bench_search
    from deployctl.simulator.scenario import load_folder
    from deployctl.simulator.truth import truth_folder

    if sold and rule != "search":
        raise UsageError("--sold asks our own question; it knows no --rule")
    world = globals_of(ctx)
    if sold:
        _sold(world.json, scenarios, seeds, workers)
        return
    report = bench_search(
        load_folder(scenarios),
        seeds,
        rule=rule,
        workers=workers,
        cache=truth_folder(scenarios),
        progress=_say,
    )
    document = report.document()
    if world.json:
        print_json(document)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("SCENARIO", no_wrap=True)
    for name in ("N*", "FALSE", "WITHIN", "SHORT", "HOURS"):
        table.add_column(name, justify="right")
    for row in document["scenarios"]:
        table.add_row(row["name"], str(row["n_star"]), *_cells(row))
    table.add_row("pooled", "", *_cells(document["pooled"]), style="bold")
    stdout_console().print(table)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _sold(as_json: bool, folder: Path, seeds: int, workers: int | None) -> None:
    from rich.table import Table

    from deployctl.cli.output import print_json, stdout_console
    from deployctl.simulator.scenario import load_folder
    from deployctl.simulator.sold import bench_sold
    from deployctl.simulator.truth import truth_folder

    document = bench_sold(load_folder(folder), seeds, workers=workers, cache=truth_folder(folder), progress=_say)
    if as_json:
        print_json(document)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("SCENARIO", no_wrap=True)
    for name in ("N*", "ASKED", "WRONG", "OPEN", "MINUTES"):
        table.add_column(name, justify="right")
    pooled = [{"name": name, **document[name]} for name in ("pooled", "brisk") if document[name]["questions"]]
    for row in (*document["scenarios"], *pooled):
        table.add_row(
            row["name"],
            str(row.get("n_star", "")),
            ", ".join(str(users) for users in row.get("asked", ())),
            f"{row['error_rate']:.0%}",
            f"{row['inconclusive_rate']:.0%}",
            f"{row['median_minutes']:.1f}",
        )
    stdout_console().print(table)


def _cells(row: dict[str, float | None]) -> list[str]:
    def share(name: str) -> str:
        value = row[name]
        return "–" if value is None else f"{value:.0%}"

    short, hours = row["median_shortfall"], row["median_server_hours"]
    return [
        share("false_sale_rate"),
        share("within_rate"),
        "–" if short is None else f"{short:g}",
        "–" if hours is None else f"{hours:.2f}",
    ]
