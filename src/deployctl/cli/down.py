"""deployctl down."""

from __future__ import annotations

from typing import Annotated

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of, wanted_of


def command(
    ctx: typer.Context,
    plan: Annotated[
        str | None, typer.Option("--plan", help="The plan whose host is meant (sandbox, for example).")
    ] = None,
    host: opt.Host = None,
    limit: opt.Limit = None,
    key: opt.KeyFile = None,
    passphrase: opt.Passphrase = None,
    password: opt.Password = None,
    sudo_password: opt.SudoPassword = None,
    jump: opt.Jump = None,
    host_key: opt.HostKey = None,
    accept_new: opt.AcceptNew = False,
    purge: Annotated[bool, typer.Option("--purge", help="Remove models, user and home as well.")] = False,
) -> None:
    """Stop the engine and remove what provisioning put on a host; models stay unless --purge."""
    from functools import partial

    from deployctl.cli.answers import show_provisioned
    from deployctl.cli.fleet import on_fleet
    from deployctl.cli.output import progress
    from deployctl.jobs.provision import down

    world = globals_of(ctx)
    if limit is not None:
        on_fleet(ctx, partial(down, purge=purge))
        return
    with progress(verbose=world.verbose) as emit:
        done = down(
            wanted_of(ctx),
            purge=purge,
            project=world.project,
            place=place_of(world),
            emit=emit,
            dry_run=world.dry_run,
        )
    show_provisioned(done, world, dry_run=world.dry_run)
