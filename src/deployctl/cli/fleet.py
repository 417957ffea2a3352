"""A command on many hosts at once (--limit): progress, a summary, the exit code of the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import typer

from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of, wanted_of
from deployctl.errors import UsageError


def on_fleet(ctx: typer.Context, job: Callable[..., Any]) -> None:
    """Run ``job`` (provision, down or rollback) on every host that --limit means, then tell how each ended.

    Exits with the worst host's code. Each host has a log of its own, and all of them are named.
    """
    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json, progress
    from deployctl.jobs.fleet import across, choose_hosts, worst

    world, wanted = globals_of(ctx), wanted_of(ctx)
    if wanted.host is not None:
        raise UsageError("--host and --limit exclude each other")
    if wanted.host_key is not None:
        raise UsageError("--host-key is one host's", hint="write host_key into inventory/hosts.yml")
    place = place_of(world)
    hosts = choose_hosts(load_catalog(world.project), str(ctx.params["limit"]), wanted.plan)
    logs = {host: world.data_dir / f"provision-{host}.log" for host in hosts}

    def work(host: str, emit: Any) -> Any:
        order = replace(wanted, host=host)
        return job(order, project=world.project, place=place, emit=emit, dry_run=world.dry_run, log=logs[host])

    with progress(verbose=world.verbose) as emit:
        outcomes = across(hosts, work, emit)
    if world.json:
        print_json({"dry_run": world.dry_run, "hosts": [_document(outcome) for outcome in outcomes]})
    else:
        _show(outcomes, dry_run=world.dry_run)
    if worst(outcomes):
        raise typer.Exit(worst(outcomes))


def _document(outcome: Any) -> dict[str, Any]:
    error, done = outcome.error, outcome.result
    return {
        "host": outcome.host,
        "seconds": round(outcome.seconds, 3),
        "exit_code": outcome.exit_code,
        "changed": done.play.changed if done else None,
        "changes": [task.name for task in done.play.tasks if task.changed] if done else None,
        "error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint} if error else None,
    }


def _show(outcomes: Sequence[Any], *, dry_run: bool) -> None:
    from rich.table import Table

    from deployctl.cli.output import escape, stdout_console
    from deployctl.units import format_seconds

    table = Table(box=None, pad_edge=False)
    for title in ("host", "time", "code", "outcome"):
        table.add_column(
            title, no_wrap=title != "outcome", overflow="fold", justify="right" if title == "code" else "left"
        )
    for outcome in outcomes:
        if outcome.error is not None:
            words = f"[red]✗[/] {escape(outcome.error.message)}"
        else:
            changed = outcome.result.play.changed
            words = f"[green]✓[/] {changed} {'would change' if dry_run else 'changed'}"
        table.add_row(escape(outcome.host), format_seconds(outcome.seconds), str(outcome.exit_code), words)
    console = stdout_console()
    console.print(table)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in failed:
        if outcome.error.hint:
            console.print(f"  [dim]{escape(outcome.host)}, try:[/] {escape(outcome.error.hint)}", soft_wrap=True)
    console.print(f"{len(outcomes) - len(failed)} of {len(outcomes)} hosts are as wanted")
