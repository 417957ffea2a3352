"""What a command answers when it is done: a summary for people, or one JSON document."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from deployctl.cli.context import Globals
from deployctl.cli.output import escape, print_json, stdout_console
from deployctl.errors import DeployctlError, MeasurementError, NegativeAnswer
from deployctl.jobs.recording import sizing_block
from deployctl.jobs.reporting import REPORT, Outcome
from deployctl.report import terminal

if TYPE_CHECKING:
    from deployctl.jobs.check import Checked
    from deployctl.jobs.provision import Provisioned

# 0 for a number that was certified, with however wide a range; see the README's table of exit codes.
EXIT_BY_STATUS = {
    "certified": 0,
    "at_least": 0,
    "not_met": NegativeAnswer.exit_code,
    "inconclusive": MeasurementError.exit_code,
    "invalid": MeasurementError.exit_code,
}


def show_run(outcome: Outcome, world: Globals) -> None:
    """Print the result of a measurement and exit with the code of its status."""
    record = outcome.record
    if world.json:
        print_json(json.loads(record.to_json()))
    else:
        console = stdout_console()
        console.print(terminal.render(record))
        if outcome.problem:
            console.print(f"[red]not kept:[/] {escape(outcome.problem)}", soft_wrap=True)
        console.print(f"record  {escape(str(outcome.run.dir / 'record.json'))}", soft_wrap=True)
        console.print(f"report  {escape(str(outcome.run.dir / REPORT))}", soft_wrap=True)
    if outcome.problem:
        raise typer.Exit(DeployctlError.exit_code)
    code = EXIT_BY_STATUS[record.capacity.status]
    if code:
        raise typer.Exit(code)


def show_provisioned(done: Provisioned, world: Globals, *, dry_run: bool) -> None:
    """Print what provisioning or removal did, or would do."""
    tasks = [task for task in done.play.tasks if task.changed]
    if world.json:
        print_json(
            {
                "host": done.host,
                "dry_run": dry_run,
                "changed": done.play.changed,
                "ok": done.play.ok,
                "changes": [task.name for task in tasks],
                **({"diffs": {task.name: task.diff for task in tasks}} if world.diff else {}),
                "sizing": sizing_block(done.fit) if done.fit else None,
                "model": asdict(done.model) if done.model else None,
                "timings": done.timings,
            }
        )
        return
    console = stdout_console()
    if not tasks:
        console.print(f"{escape(done.host)}: nothing {'would change' if dry_run else 'changed'}")
        return
    console.print(f"{escape(done.host)}: {len(tasks)} {'would change' if dry_run else 'changed'}")
    for task in tasks:
        console.print(f"  {'~' if dry_run else '✓'} {escape(task.name)}")
        for line in task.diff.splitlines() if world.diff else ():
            style = {"+": "green", "-": "red"}.get(line[:1], "dim")
            console.print(f"    [{style}]{escape(line)}[/]", soft_wrap=True)


def show_host(checked: Checked) -> None:
    """Print a table of what was found, then what is wrong."""
    console = stdout_console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in checked.found.items():
        table.add_row(name, escape(value))
    console.print(table)
    for sentence in checked.problems:
        console.print(f"[red]✗[/] {escape(sentence)}")
    for sentence in checked.warnings:
        console.print(f"[yellow]![/] {escape(sentence)}")
    if checked.ready:
        console.print("[green]✓[/] ready to be provisioned")
