"""deployctl models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deployctl.cli.app import globals_of

if TYPE_CHECKING:
    from deployctl.catalog.models import ModelEntry


def command(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Only this one, in full.")] = None,
) -> None:
    """List the models that deployctl knows, with the sizes of their variants, or show one.

    ~ marks a size that is estimated. advise, up and provision take any other name:tag of a registry, too.
    """
    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json

    world = globals_of(ctx)
    catalog = load_catalog(world.project)
    chosen = [catalog.model(model)] if model else list(catalog.models.values())
    if world.json:
        documents = [entry.model_dump(mode="json") for entry in chosen]
        print_json(documents[0] if model else documents)
    elif model:
        _show(chosen[0])
    else:
        _list(chosen)


def _list(models: list[ModelEntry]) -> None:
    from rich.table import Table

    from deployctl.cli.output import print_table
    from deployctl.units import format_bytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("MODEL", no_wrap=True)
    table.add_column("VARIANTS", overflow="fold")
    for entry in models:
        variants = ", ".join(
            f"{name} {'~' if variant.estimated else ''}{format_bytes(variant.bytes)}"
            for name, variant in entry.variants.items()
        )
        table.add_row(entry.name, variants)
    print_table(table)


def _show(model: ModelEntry) -> None:
    from rich.table import Table

    from deployctl.catalog.models import quality
    from deployctl.cli.output import escape, print_table, rows_table, stdout_console
    from deployctl.sizing.memory import kv_bytes
    from deployctl.units import format_bytes

    parameters = f"{model.parameters / 1e9:.3g} billion parameters"
    if model.active_parameters:
        parameters += f", {model.active_parameters / 1e9:.3g} billion of them read for a token"
    window = sum(model.windowed_by_layer)
    rows = {
        "size": parameters,
        "layers": f"{model.layers}" + (f", {window} of them see {model.sliding_window} tokens only" if window else ""),
        "context": f"{model.context:,} tokens at most",
        "KV cache": f"{format_bytes(kv_bytes(model, min(4096, model.context), 1))} for 4,096 tokens in f16",
        "images": f"{format_bytes(model.projector_bytes)} of vision tower" if model.projector_bytes else "",
        "also": ", ".join(model.aliases),
        "source": model.source,
    }
    stdout_console().print(f"[bold]{escape(model.name)}[/]: {escape(model.title)}")
    print_table(rows_table({name: value for name, value in rows.items() if value}))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("VARIANT", no_wrap=True)
    table.add_column("SIZE", justify="right", no_wrap=True)
    table.add_column("PULLED AS", overflow="fold")
    table.add_column("FROM", overflow="fold")
    for name in sorted(model.variants, key=quality):
        variant = model.variants[name]
        usual = " (usual)" if name == model.default else ""
        origin = "estimated" if variant.estimated else variant.source
        table.add_row(name + usual, format_bytes(variant.bytes), escape(model.reference(name)), escape(origin))
    print_table(table)
