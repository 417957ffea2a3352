"""deployctl host."""

from __future__ import annotations

from typing import Annotated

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of
from deployctl.errors import UsageError

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True, help="Look at a host; change nothing."
)


@app.callback()
def group() -> None:
    """Look at a host; change nothing."""


@app.command("check")
def check(
    ctx: typer.Context,
    host: Annotated[
        str | None, typer.Argument(help="user@address[:port], or a name of inventory/hosts.yml.", show_default=False)
    ] = None,
    limit: opt.Limit = None,
    plan: Annotated[str | None, typer.Option("--plan", help="Compare with what this plan sells.")] = None,
    key: opt.KeyFile = None,
    passphrase: opt.Passphrase = None,
    password: opt.Password = None,
    sudo_password: opt.SudoPassword = None,
    jump: opt.Jump = None,
    host_key: opt.HostKey = None,
    accept_new: opt.AcceptNew = False,
) -> None:
    """Reach a host over SSH and say what it is, what it lacks and how it differs from a plan; read-only.

    With --limit many hosts at once, in a table; the exit code is that of the worst.
    """
    from dataclasses import asdict

    from deployctl.cli.answers import show_host
    from deployctl.cli.fleet import check_fleet
    from deployctl.cli.output import print_json, progress
    from deployctl.cli.wanting import wanted_of
    from deployctl.jobs.check import check_host

    world = globals_of(ctx)
    if limit is not None:
        check_fleet(ctx)
        return
    if host is None:
        raise UsageError("no host was named", hint="deployctl host check user@address, or --limit '*'")
    with progress(verbose=world.verbose) as emit:
        checked = check_host(wanted_of(ctx), project=world.project, place=place_of(world), emit=emit)
    if world.json:
        print_json(asdict(checked))
    else:
        show_host(checked)
    if not checked.ready:
        raise typer.Exit(1)
