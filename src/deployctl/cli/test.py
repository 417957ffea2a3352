"""deployctl test."""

from __future__ import annotations

from typing import Annotated

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of, wanted_of
from deployctl.errors import UsageError


def check_url(url: str) -> None:
    """Refuse what the load generator cannot drive, before anything is contacted; never repeats a password."""
    from urllib.parse import urlsplit

    if "://" not in url:
        raise UsageError(f"--url {url}: not a URL", hint=f"--url http://{url}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--url: {error}", hint="--url http://127.0.0.1:11434") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError("--url: a name or password in it is not supported", hint="--url http://address:port")
    if parts.scheme != "http" or not parts.hostname or port == 0:
        raise UsageError(
            f"--url {url}: the load generator speaks plain HTTP only", hint="measure behind TLS, on http://address:port"
        )


def command(
    ctx: typer.Context,
    model: opt.ModelRef,
    url: Annotated[
        str | None, typer.Option("--url", help="A reachable Ollama, for example http://10.0.0.5:11434.")
    ] = None,
    plan: Annotated[str | None, typer.Option("--plan", help="The plan that the host embodies.")] = None,
    host: opt.Host = None,
    key: opt.KeyFile = None,
    passphrase: opt.Passphrase = None,
    password: opt.Password = None,
    sudo_password: opt.SudoPassword = None,
    jump: opt.Jump = None,
    host_key: opt.HostKey = None,
    accept_new: opt.AcceptNew = False,
    slots: Annotated[
        int | None, typer.Option("--slots", min=1, help="Its parallel slots, where you know them.")
    ] = None,
    slo: opt.SloName = None,
    workload: opt.WorkloadName = None,
    budget: opt.BudgetText = "standard",
    max_users: opt.MaxUsers = None,
    seed: opt.Seed = 1,
) -> None:
    """Measure how many users a model holds that is served already; install and change nothing."""
    from deployctl.cli.answers import show_run
    from deployctl.cli.output import progress
    from deployctl.jobs.test import test

    if url is not None and host is not None:
        raise UsageError("--url and --host exclude each other")
    if url is not None:
        check_url(url)
    world = globals_of(ctx)
    if world.dry_run:
        raise UsageError("test changes nothing on a host, so there is no dry run of it")
    with progress(verbose=world.verbose) as emit:
        outcome = test(wanted_of(ctx), url=url, project=world.project, place=place_of(world), emit=emit)
    show_run(outcome, world)
