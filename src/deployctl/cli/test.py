"""deployctl test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of, wanted_of
from deployctl.errors import UsageError

if TYPE_CHECKING:
    from deployctl.jobs.openloop import Arrivals


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
    workers: opt.Workers = None,
    loadgen: opt.LoadHosts = None,
    protocol: Annotated[str, typer.Option("--protocol", help="ollama, or openai (/v1/chat/completions).")] = "ollama",
    rate: Annotated[
        str | None, typer.Option("--rate", help="Open loop: requests per second, or max.", metavar="RATE")
    ] = None,
    arrivals: Annotated[
        str | None, typer.Option("--arrivals", help="Of an open loop: poisson (default) or constant.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Open loop: a log of requests (JSON Lines).", dir_okay=False)
    ] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", min=0.001, max=1000, help="Play a log so many times as fast.")
    ] = None,
) -> None:
    """Measure how many users a model holds that is served already; install and change nothing.

    With --rate or --replay: whether it holds so many requests a second, or the requests of a log.
    """
    from deployctl.cli.answers import show_run
    from deployctl.cli.output import progress
    from deployctl.jobs.test import is_log, test, test_arrivals

    if url is not None and host is not None:
        raise UsageError("--url and --host exclude each other")
    if url is not None:
        check_url(url)
    world = globals_of(ctx)
    if world.dry_run:
        raise UsageError("test changes nothing on a host, so there is no dry run of it")
    wanted = wanted_of(ctx)
    asked = read_arrivals(rate, arrivals, replay, speed)
    if replay is not None and wanted.workload is None:
        wanted = replace(wanted, workload="replay")
    if rate is None and not is_log(wanted, world.project):
        if replay is not None or arrivals is not None or speed is not None:
            raise UsageError("--arrivals needs --rate; --replay and --speed need a workload that is a log")
        with progress(verbose=world.verbose) as emit:
            outcome = test(wanted, url=url, project=world.project, place=place_of(world), emit=emit, keeping=None)
        show_run(outcome, world)
        return
    from deployctl.cli.open_answers import show_open

    if rate is not None and is_log(wanted, world.project):
        raise UsageError("--rate excludes a log: its requests come at their own times", hint="--speed 2")
    with progress(verbose=world.verbose) as emit:
        answer = test_arrivals(wanted, asked, url=url, project=world.project, place=place_of(world), emit=emit)
    show_open(answer, world)


def read_arrivals(rate: str | None, process: str | None, replay: Path | None, speed: float | None) -> Arrivals:
    """Read the options of an open loop; raises UsageError."""
    from deployctl.jobs.openloop import Arrivals
    from deployctl.load.arrivals import read_log

    if process is not None and process not in ("poisson", "constant"):
        raise UsageError(f"--arrivals {process}: not one of poisson, constant")
    if rate is not None and replay is not None:
        raise UsageError("--rate and --replay exclude each other: a log's requests come at their own times")
    if replay is not None:
        read_log(replay)  # says now what is wrong with it
        return Arrivals(log=replay.absolute(), speed=speed or 1.0)
    per_s = None
    if rate not in (None, "max"):
        try:
            per_s = float(rate or "")
        except ValueError:
            per_s = -1.0
        if not 0 < per_s <= 10_000:
            raise UsageError(f"--rate {rate}: not a number of requests per second", hint="--rate 2.5, or --rate max")
    return Arrivals(per_s, "constant" if process == "constant" else "poisson", speed=speed or 1.0)
