"""deployctl models."""

from __future__ import annotations

from typing import Annotated

import typer

from deployctl.cli.app import globals_of


def command(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Only this one (--json shows all of it).")] = None,
) -> None:
    """List the models that deployctl knows, with the sizes of their variants, or show one."""
    from rich.table import Table

    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json, stdout_console
    from deployctl.units import format_bytes

    world = globals_of(ctx)
    catalog = load_catalog(world.project)
    chosen = [catalog.model(model)] if model else list(catalog.models.values())
    if world.json:
        documents = [entry.model_dump(mode="json") for entry in chosen]
        print_json(documents[0] if model else documents)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MODEL", no_wrap=True)
    table.add_column("VARIANTS", overflow="fold")
    for entry in chosen:
        variants = ", ".join(f"{name} {format_bytes(variant.bytes)}" for name, variant in entry.variants.items())
        table.add_row(entry.name, variants)
    stdout_console().print(table)
