"""A command on many hosts at once (--limit): progress, a summary, the exit code of the worst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import typer

from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of, wanted_of
from deployctl.errors import NegativeAnswer, UsageError


def on_fleet(ctx: typer.Context, job: Callable[..., Any]) -> None:
    """Run ``job`` (provision, down or rollback) on every host that --limit means, then tell how each ended.

    Exits with the worst host's code. Each host has a log of its own, and all of them are named.
    """
    from deployctl.cli.output import print_json, progress
    from deployctl.jobs.fleet import across, worst

    world, wanted, place = globals_of(ctx), wanted_of(ctx), place_of(globals_of(ctx))
    hosts = _hosts(ctx)
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


def check_fleet(ctx: typer.Context) -> None:
    """Look at every host that --limit means, show a line for each, and exit with the worst host's code."""
    from deployctl.cli.output import print_json, progress
    from deployctl.jobs.check import Checked, check_host
    from deployctl.jobs.fleet import HostOutcome, across

    world, wanted, place = globals_of(ctx), wanted_of(ctx), place_of(globals_of(ctx))
    hosts = _hosts(ctx)

    def work(host: str, emit: Any) -> Checked:
        return check_host(replace(wanted, host=host), project=world.project, place=place, emit=emit)

    def code(outcome: HostOutcome[Checked]) -> int:
        ready = outcome.result is None or outcome.result.ready
        return outcome.exit_code if ready else NegativeAnswer.exit_code

    with progress(verbose=world.verbose) as emit:
        outcomes = across(hosts, work, emit)
    codes = [code(outcome) for outcome in outcomes]
    if world.json:
        print_json({"hosts": [_checked(*pair) for pair in zip(outcomes, codes, strict=True)]})
    else:
        _show_checked(outcomes, codes)
    if any(codes):
        raise typer.Exit(max(codes))


def _hosts(ctx: typer.Context) -> tuple[str, ...]:
    """The hosts that --limit means; raises UsageError where one host alone is named beside it."""
    from deployctl.catalog.load import load_catalog
    from deployctl.jobs.fleet import choose_hosts

    wanted = wanted_of(ctx)
    if wanted.host is not None:
        raise UsageError("a host and --limit exclude each other")
    if wanted.host_key is not None:
        raise UsageError("--host-key is one host's", hint="write host_key into inventory/hosts.yml")
    return choose_hosts(load_catalog(globals_of(ctx).project), str(ctx.params["limit"]), wanted.plan)


def _checked(outcome: Any, code: int) -> dict[str, Any]:
    error = outcome.error
    found = asdict(outcome.result) if outcome.result else {"found": None, "problems": [], "warnings": []}
    return {
        **found,
        "host": outcome.host,
        "seconds": round(outcome.seconds, 3),
        "exit_code": code,
        "ready": bool(outcome.result and outcome.result.ready),
        "error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint} if error else None,
    }


def _show_checked(outcomes: Sequence[Any], codes: Sequence[int]) -> None:
    from rich.table import Table

    from deployctl.cli.output import escape, stdout_console

    table = Table(box=None, pad_edge=False)
    for title in ("host", "code", "system", "CPU", "memory", "GPUs", "outcome"):
        table.add_column(title, overflow="fold", justify="right" if title == "code" else "left")
    notes: list[str] = []
    for outcome, code in zip(outcomes, codes, strict=True):
        name, checked = escape(outcome.host), outcome.result
        if checked is None:
            table.add_row(name, str(code), "", "", "", "", f"[red]✗[/] {escape(outcome.error.message)}")
            notes += [f"  [dim]{name}, try:[/] {escape(outcome.error.hint)}"] if outcome.error.hint else []
            continue
        found = [escape(checked.found[key].split(", ")[0]) for key in ("system", "CPU", "memory", "GPUs")]
        more = f", {len(checked.warnings)} to know" if checked.warnings else ""
        said = "[green]✓[/] ready" if checked.ready else f"[red]✗[/] {len(checked.problems)} in the way"
        table.add_row(name, str(code), *found, said + more)
        notes += [f"  [red]✗[/] {name}: {escape(sentence)}" for sentence in checked.problems]
        notes += [f"  [yellow]![/] {name}: {escape(sentence)}" for sentence in checked.warnings]
    console = stdout_console()
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True)
    console.print(f"{sum(code == 0 for code in codes)} of {len(codes)} hosts are ready to be provisioned")


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
