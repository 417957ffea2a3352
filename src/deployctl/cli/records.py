"""deployctl records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployctl.cli.app import globals_of
from deployctl.errors import RecordError, UsageError

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Verify, list, compare, export, import and prune what was measured.",
)
Runs = Annotated[list[str] | None, typer.Argument(help="Ids of runs, or beginnings of them; none: all.")]


@app.callback()
def group() -> None:
    """Verify, list, compare, export, import and prune what was measured."""


@app.command("verify")
def verify(ctx: typer.Context, runs: Runs = None) -> None:
    """Detect what was edited, cut short or lost: the seal, the evidence, the raw requests, the index."""
    from deployctl.cli.output import escape, print_json, stdout_console
    from deployctl.jobs.keeping import verify_all

    world = globals_of(ctx)
    found, warning = verify_all(world.data_dir, tuple(runs or ()))
    bad = [one for one in found if not one.ok]
    if world.json:
        documents = [
            {
                "run_id": one.run_id,
                "ok": one.ok,
                "digest": one.digest or None,
                "findings": [{"kind": finding.kind, "message": finding.message} for finding in one.findings],
            }
            for one in found
        ]
        print_json({"ok": not bad, "runs": documents, "warning": warning or None})
    else:
        console = stdout_console()
        for one in found:
            for finding in one.findings:
                mark = "[dim]·[/]" if one.ok else "[red]✗[/]"
                console.print(f"{mark} {one.run_id} {finding.kind}: {escape(finding.message)}", soft_wrap=True)
        if warning:
            console.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)
        good = len(found) - len(bad)
        console.print(f"{good} of {len(found)} run{'s' if len(found) != 1 else ''} as they were written")
    if bad:
        raise typer.Exit(1)


@app.command("list")
def list_(
    ctx: typer.Context,
    plan: Annotated[str | None, typer.Option("--plan", help="Only runs of this plan.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only runs of this model.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Only runs on this host.")] = None,
    workload: Annotated[str | None, typer.Option("--workload", help="Only runs with this workload.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many, newest first.")] = 50,
    form: Annotated[str, typer.Option("--format", help="terminal or csv.")] = "terminal",
) -> None:
    """List the runs of the index, newest first (of every data directory that shares it)."""
    from deployctl.cli.output import print_json, stdout_console
    from deployctl.records.db import queries
    from deployctl.records.db.index import Index
    from deployctl.records.store import RunStore
    from deployctl.report import spreadsheet, tables

    if form not in ("terminal", "csv"):
        raise UsageError(f"--format {form}: not one of terminal, csv")
    world = globals_of(ctx)
    with Index.open(world.data_dir) as index:
        index.sync(RunStore(world.data_dir))
        found = queries.recent(index, limit=limit, plan=plan, model=model, host=host, workload=workload)
    if world.json:
        print_json([spreadsheet.flat(row) for row in found])
    elif form == "csv":
        typer.echo(
            spreadsheet.render([spreadsheet.flat(row) for row in found], columns=spreadsheet.RUN_COLUMNS), nl=False
        )
    else:
        stdout_console().print(tables.runs(found))


@app.command("show")
def show(ctx: typer.Context, run: Annotated[str, typer.Argument(help="The run, or last.")] = "last") -> None:
    """Show a run's record (--json: the document itself)."""
    import json

    from deployctl.cli.output import print_json, stdout_console
    from deployctl.records.store import RunStore
    from deployctl.report import terminal

    world = globals_of(ctx)
    record = RunStore(world.data_dir).read(run)
    if world.json:
        print_json(json.loads(record.to_json()))
        return
    stdout_console().print(terminal.render(record))
    stdout_console().print(f"digest    {record.digest}")


@app.command("compare")
def compare(
    ctx: typer.Context,
    before: Annotated[str, typer.Argument(help="The earlier run.")],
    after: Annotated[str, typer.Argument(help="The later run, or last.")] = "last",
) -> None:
    """Say what changed between two runs, with the interval of every difference, and what else differs."""
    from dataclasses import asdict

    from deployctl.cli.output import print_json, stdout_console
    from deployctl.records.compare import compare as compare_records
    from deployctl.records.store import RunStore
    from deployctl.report import tables

    world = globals_of(ctx)
    store = RunStore(world.data_dir)
    found = compare_records(store.read(before), store.read(after))
    if world.json:
        print_json(asdict(found))
    else:
        stdout_console().print(tables.comparison(found))


@app.command("export")
def export(
    ctx: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="The tar to write.")],
    runs: Runs = None,
    samples: Annotated[bool, typer.Option("--samples/--no-samples", help="With the raw requests.")] = True,
) -> None:
    """Write runs into one tar, each verified first."""
    from deployctl.cli.output import print_json
    from deployctl.records import archive
    from deployctl.records.store import Run, RunStore

    world = globals_of(ctx)
    store = RunStore(world.data_dir)
    chosen = (
        [store.resolve(reference) for reference in runs]
        if runs
        else [Run(run_id, folder) for run_id, folder in sorted(store.recorded().items())]
    )
    if not chosen:
        raise RecordError(f"there is no finished run in {store.root}")
    count = archive.export(chosen, output, samples=samples)
    if world.json:
        print_json({"file": str(output), "runs": count})
    else:
        typer.echo(f"{output}: {count} run{'s' if count != 1 else ''}")


@app.command("import")
def import_(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="A tar of records export, a record.json, or a folder of runs.")],
) -> None:
    """Take runs in; a record that was edited or contradicts itself is refused."""
    from dataclasses import asdict

    from deployctl.cli.output import escape, print_json, progress, stdout_console
    from deployctl.jobs.keeping import sync
    from deployctl.records import archive
    from deployctl.records.store import RunStore

    world = globals_of(ctx)
    store = RunStore(world.data_dir)
    done = archive.take_in(source, store)
    with progress(verbose=world.verbose) as emit:
        sync(store, emit)
    if world.json:
        print_json(asdict(done))
    else:
        console = stdout_console()
        for name, why in done.refused:
            console.print(f"[red]✗[/] {escape(name)}: {escape(why)}", soft_wrap=True)
        console.print(f"{len(done.new)} new, {len(done.known)} known, {len(done.refused)} refused")
    if done.refused:
        raise typer.Exit(1)


@app.command("sync")
def sync_(ctx: typer.Context) -> None:
    """Bring the index level with the records on disk; needed only after the database was out of reach."""
    from dataclasses import asdict

    from deployctl.cli.output import escape, print_json, stdout_console
    from deployctl.records.db.index import Index
    from deployctl.records.store import RunStore

    world = globals_of(ctx)
    with Index.open(world.data_dir) as index:
        done = index.sync(RunStore(world.data_dir))
    if world.json:
        print_json(asdict(done))
    else:
        for run_id, why in done.refused:
            stdout_console().print(f"[red]✗[/] {run_id}: {escape(why)}", soft_wrap=True)
        typer.echo(f"{len(done.imported)} imported, {len(done.refused)} refused")
    if done.refused:
        raise typer.Exit(1)


@app.command("prune")
def prune(
    ctx: typer.Context,
    samples_days: Annotated[float, typer.Option("--samples-days", min=0, help="Keep raw requests so long.")] = 90,
    runs_days: Annotated[float | None, typer.Option("--runs-days", min=0, help="Keep runs so long; else all.")] = None,
) -> None:
    """Throw away old raw requests, and old runs where asked; never the newest certified run of a series."""
    from dataclasses import asdict

    from deployctl.cli.output import print_json
    from deployctl.jobs.keeping import prune as prune_runs
    from deployctl.records.retention import Policy

    world = globals_of(ctx)
    removed = prune_runs(world.data_dir, Policy(samples_days, runs_days), dry_run=world.dry_run)
    if world.json:
        print_json({"dry_run": world.dry_run, "removed": [asdict(one) for one in removed]})
        return
    for one in removed:
        typer.echo(f"{'would remove' if world.dry_run else 'removed'} {one.what} of {one.run_id}: {one.reason}")
    if not removed:
        typer.echo("nothing to remove")
