"""deployctl nightly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.context import Globals
from deployctl.cli.wanting import place_of, wanted_of
from deployctl.errors import UsageError

if TYPE_CHECKING:
    from deployctl.events import Emit
    from deployctl.nightly.summary import Summary

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Measure the fleet, what is stale first; say what changed.",
)
Matrix = Annotated[
    Path | None, typer.Option("--matrix", help="What to measure; else inventory/nightly.yml.", dir_okay=False)
]
Metrics = Annotated[Path | None, typer.Option("--metrics", help="Write metrics there (.prom, for node_exporter).")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the newest run of every series there.")]
Webhook = Annotated[
    str | None, typer.Option("--webhook", help="Post the summary there as JSON.", envvar="DEPLOYCTL_WEBHOOK")
]


@app.callback(invoke_without_command=True)
def group(
    ctx: typer.Context,
    matrix: Matrix = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another night runs; else refuse.")] = False,
    hours: Annotated[float | None, typer.Option("--hours", min=0.01, help="End the night after so long.")] = None,
    metrics: Metrics = None,
    csv: Csv = None,
    webhook: Webhook = None,
    key: opt.KeyFile = None,
    accept_new: opt.AcceptNew = False,
    engine: opt.Engine = None,
    ollama_archive: opt.Archive = None,
    ollama_version: opt.OllamaVersion = None,
    ollama_mirror: opt.Mirror = None,
    seed: opt.Seed = 1,
) -> None:
    """Measure the fleet, what is stale first; say what changed.

    Exit code: 0 all was measured and nothing fell, 1 something fell or could not be measured.
    """
    if ctx.invoked_subcommand is not None:
        return
    from dataclasses import replace

    from deployctl.cli.output import progress
    from deployctl.jobs.nightly import Limits, NightJob
    from deployctl.nightly.feeds import check_webhook

    if webhook is not None:
        check_webhook(webhook)
    if metrics is not None and metrics.suffix != ".prom":
        raise UsageError(f"--metrics {metrics}: node_exporter reads files that end in .prom only")
    world = globals_of(ctx)
    wanted = replace(wanted_of(ctx), host=None, plan=None)
    with progress(verbose=world.verbose) as emit:
        job = NightJob(
            wanted,
            matrix=matrix,
            project=world.project,
            place=place_of(world),
            emit=emit,
            limits=Limits(hours * 3600.0 if hours is not None else None),
        )
        summary = job.run(wait=wait)
        said = _feed(world, summary, emit, metrics, csv, webhook)
    _show(summary, world, said)
    if summary.failed or any(one.change == "slower" for one in summary.found):
        raise typer.Exit(1)


@app.command("status")
def status(ctx: typer.Context) -> None:
    """Say how far the newest night is, task by task."""
    from deployctl.cli.output import escape, print_json, stdout_console
    from deployctl.jobs.nightly import status as newest

    world = globals_of(ctx)
    found = newest(world.data_dir)
    if world.json:
        print_json(found)
        return
    console = stdout_console()
    if found["night_id"] is None:
        console.print("no night yet")
        return
    state = "running" if found["running"] else "ended" if found["ended"] else "interrupted: the next start goes on"
    console.print(f"night {found['night_id']}: {state}")
    for task in found["tasks"]:
        message = f": {task['message']}" if task["message"] else ""
        console.print(f"  {task['state']:<8} {escape(task['task'])}{escape(message)}", soft_wrap=True)


@app.command("install")
def install(
    ctx: typer.Context,
    at: Annotated[str, typer.Option("--at", help="Time of day, HH:MM.")] = "22:00",
    timezone: Annotated[str | None, typer.Option("--timezone", help="Of --at; else the machine's own.")] = None,
    user: Annotated[bool, typer.Option("--user", help="For this user only (systemctl --user).")] = False,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where unit files go, if elsewhere.")] = None,
    matrix: Matrix = None,
    metrics: Metrics = None,
    csv: Csv = None,
) -> None:
    """Write a systemd service and timer, and print the line for cron; enable nothing."""
    import shutil
    import sys
    from zoneinfo import available_timezones

    from deployctl.cli.output import print_json
    from deployctl.nightly import install as made_of

    world = globals_of(ctx)
    if timezone is not None and timezone not in available_timezones():
        raise UsageError(f"--timezone {timezone}: no such time zone", hint="--timezone America/Mexico_City")
    program = shutil.which(sys.argv[0]) or shutil.which("deployctl")
    command = [str(Path(program).absolute())] if program else [sys.executable, "-m", "deployctl"]
    command += ["--project", str(world.project.root), "--data-dir", str(world.data_dir), "nightly"]
    for option, path in (("--matrix", matrix), ("--metrics", metrics), ("--csv", csv)):
        if path is not None:
            command += [option, str(path.absolute())]
    made = made_of.units(command, at=at, timezone=timezone, user=user)
    default = Path.home() / ".config/systemd/user" if user else Path("/etc/systemd/system")
    paths = () if world.dry_run else made_of.write(made, folder or default)
    scope = " --user" if user else ""
    enable = f"systemctl{scope} daemon-reload && systemctl{scope} enable --now {made_of.UNIT}.timer"
    if world.json:
        print_json({"files": [str(path) for path in paths], "service": made.service, "timer": made.timer,
                    "cron": made.cron, "enable": enable})  # fmt: skip
        return
    for path in paths:
        typer.echo(f"wrote {path}")
    if world.dry_run:
        typer.echo(f"{made.service}\n{made.timer}")
    typer.echo(f"enable it:  {enable}")
    typer.echo(f"or by cron:\n{made.cron}")


def _feed(
    world: Globals, summary: Summary, emit: Emit, metrics: Path | None, csv: Path | None, webhook: str | None
) -> list[str]:
    """Write the feeds; what fails is said and costs nothing else."""
    from deployctl.errors import DeployctlError
    from deployctl.nightly import feeds
    from deployctl.records.db import queries
    from deployctl.records.db.index import Index
    from deployctl.records.files import write_atomic
    from deployctl.report import spreadsheet

    said = []
    if metrics is not None or csv is not None:
        try:
            with Index.open(world.data_dir) as index:
                rows = queries.latest(index)
                if metrics is not None:
                    feeds.write_metrics(metrics, feeds.metrics(rows, _fallen(rows, index), summary.to_dict()))
            if csv is not None:
                table = spreadsheet.render([spreadsheet.flat(row) for row in rows], spreadsheet.RUN_COLUMNS)
                write_atomic(csv, table.encode())
        except (DeployctlError, OSError) as error:
            said.append(f"feeds: {getattr(error, 'message', error)}")
    if webhook is not None:
        said.append(feeds.post(webhook, {"event": "night", **summary.to_dict()}))
    return said


def _fallen(rows: list[Any], index: Any) -> list[Any]:
    from deployctl.nightly.history import judge_series

    return [row for row in rows if judge_series(index, row.series)[0].open is not None]


def _show(summary: Summary, world: Globals, said: list[str]) -> None:
    from deployctl.cli.output import escape, print_json, stdout_console

    if world.json:
        print_json({**summary.to_dict(), "feeds": said})
        return
    console = stdout_console()
    counts = summary.to_dict()["counts"]
    console.print(f"night {summary.night_id}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    styles = {"slower": "red", "faster": "green", "new": "bold"}
    for one in summary.found:
        style = styles.get(one.change, "dim")
        most = f" to {one.at_most_users}" if (one.at_most_users or 0) > one.users else ""
        message = f": {one.message}" if one.message else ""
        console.print(
            f"  [{style}]{one.change:<9}[/] {escape(one.key)}: {one.users}{most} users, {one.status}{escape(message)}",
            soft_wrap=True,
        )
        for name, before, since in one.suspects if one.change in ("slower", "faster") else ():
            console.print(f"            with it: {escape(name)} {escape(before)} → {escape(since)}", soft_wrap=True)
    for key, message in summary.failed:
        console.print(f"  [red]failed   [/] {escape(key)}: {escape(message)}", soft_wrap=True)
    for key, message in summary.skipped:
        console.print(f"  [yellow]skipped  [/] {escape(key)}: {escape(message)}", soft_wrap=True)
    for line in (*summary.notes, *said):
        console.print(f"  {escape(line)}", soft_wrap=True)
