"""deployctl plans."""

from __future__ import annotations

from typing import Annotated

import typer

from deployctl.cli.app import globals_of


def command(
    ctx: typer.Context,
    plan: Annotated[str | None, typer.Argument(help="Only this one (--json shows all of it).")] = None,
) -> None:
    """List the plans that are sold, or show one."""
    from rich.table import Table

    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json, stdout_console

    world = globals_of(ctx)
    catalog = load_catalog(world.project)
    chosen = [catalog.plan(plan)] if plan else list(catalog.plans.values())
    if world.json:
        documents = [entry.model_dump(mode="json") for entry in chosen]
        print_json(documents[0] if plan else documents)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("PLAN", "left"), ("CPUS", "right"), ("RAM", "right"), ("GPU", "left"), ("PRICE", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("PROMISES", overflow="fold")
    for entry in chosen:
        gpus = ", ".join(f"{gpu.count} × {gpu.model}" if gpu.count > 1 else gpu.model for gpu in entry.gpus)
        price = f"{entry.price.amount:,.0f} {entry.price.currency}/{entry.price.per}" if entry.price else ""
        promises = ", ".join(
            f"{model}: {promise.users} user{'s' if promise.users != 1 else ''}"
            for model, promise in entry.promises.items()
            if promise.users
        )
        table.add_row(entry.id, str(entry.vcpus), f"{entry.ram_gb:g} GB", gpus, price, promises)
    stdout_console().print(table)
