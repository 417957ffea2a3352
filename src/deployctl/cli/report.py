"""deployctl report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployctl.cli.app import globals_of
from deployctl.errors import UsageError

FORMATS = ("terminal", "html", "md", "json")


def command(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(help="The run's id, the beginning of it, or last.")] = "last",
    form: Annotated[str, typer.Option("--format", help="terminal, html, md or json.")] = "terminal",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write there instead of stdout.")] = None,
) -> None:
    """Show the report of a run, or export it."""
    from deployctl.cli.output import stdout_console
    from deployctl.records.store import RunStore
    from deployctl.report import html, markdown, terminal

    if form not in FORMATS:
        raise UsageError(f"--format {form}: not one of {', '.join(FORMATS)}")
    world = globals_of(ctx)
    if world.json:
        if form not in ("terminal", "json"):
            raise UsageError(f"--json and --format {form} exclude each other")
        form = "json"
    record = RunStore(world.data_dir).read(run)
    if form == "terminal" and output is None:
        stdout_console().print(terminal.render(record))
        return
    if form == "terminal":
        raise UsageError("a terminal report is not written to a file", hint="--format html, md or json")
    text = {
        "html": lambda: html.render(record, world.project),
        "md": lambda: markdown.render(record),
        "json": record.to_json,
    }[form]()
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    typer.echo(f"{output}", err=True)
