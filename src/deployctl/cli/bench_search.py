"""deployctl bench-search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployctl.cli.app import globals_of


def command(
    ctx: typer.Context,
    scenarios: Annotated[Path, typer.Option("--scenarios", help="A folder of scenario files.", file_okay=False)],
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches per scenario.")] = 20,
    rule: Annotated[
        str, typer.Option("--rule", help="search (ours), or a peer's rule, such as bisect-n300.")
    ] = "search",
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes (default: all cores).")] = None,
) -> None:
    """Hold the capacity search against simulated servers whose capacity is known, and count its errors."""
    from rich.table import Table

    from deployctl.cli.output import print_json, stdout_console
    from deployctl.simulator.bench import bench_search
    from deployctl.simulator.scenario import load_folder
    from deployctl.simulator.truth import truth_folder

    world = globals_of(ctx)
    report = bench_search(
        load_folder(scenarios),
        seeds,
        rule=rule,
        workers=workers,
        cache=truth_folder(scenarios),
        progress=lambda text: typer.echo(text, err=True),
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
