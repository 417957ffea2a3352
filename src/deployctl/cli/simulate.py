"""deployctl simulate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer

from deployctl.cli.app import globals_of
from deployctl.errors import UsageError


def command(
    ctx: typer.Context,
    scenario: Annotated[Path, typer.Option("--scenario", help="The scenario file.")],
    users: Annotated[int | None, typer.Option("--users", min=1, help="What this many users get.")] = None,
    find: Annotated[bool, typer.Option("--find", help="Find the largest number of users that keeps the SLO.")] = False,
    hosts: Annotated[int, typer.Option("--hosts", min=1, help="Equal hosts behind a balancer.")] = 1,
    balancing: Annotated[str, typer.Option("--balancing", help="round-robin or least-connections.")] = "round-robin",
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.")] = 0,
) -> None:
    """What if: play users on simulated hosts, in virtual time. Nothing is measured, nothing is contacted."""
    from deployctl.cli.output import print_json, stdout_console
    from deployctl.simulator.cluster import Balancing
    from deployctl.simulator.scenario import load_scenario
    from deployctl.simulator.whatif import find_capacity, simulate
    from deployctl.units import format_seconds

    if (users is None) == (not find):
        raise UsageError("give either --users N or --find")
    if balancing not in get_args(Balancing):
        raise UsageError(f"--balancing {balancing}: not one of {', '.join(get_args(Balancing))}")
    world = globals_of(ctx)
    played = load_scenario(scenario)
    console = stdout_console()
    if users is None:
        found = find_capacity(played, hosts=hosts, balancing=balancing, seed=seed, cache=world.cache_dir)  # type: ignore[arg-type]
        if world.json:
            print_json({"scenario": played.name, "hosts": hosts, "balancing": balancing, **asdict(found)})
            return
        reach = f"{found.n_star}" if found.n_star == found.n_star_high else f"{found.n_star} to {found.n_star_high}"
        more = " or more" if found.at_least else ""
        console.print(f"{played.name}: {reach}{more} users on {hosts} host{'s' if hosts > 1 else ''}")
        return
    answer = simulate(played, users, hosts=hosts, balancing=balancing, seed=seed)  # type: ignore[arg-type]
    if world.json:
        print_json(_finite(asdict(answer)))
        return
    said = "meets the SLO" if answer.meets_slo else "misses the SLO"
    console.print(f"{played.name}: {users} users on {hosts} host{'s' if hosts > 1 else ''} {said}")
    console.print(f"  {answer.attainment:.2%} of requests (± {answer.attainment_error:.2%} standard error)")
    for name, values in answer.percentiles.items():
        shown = ", ".join(f"{key} {format_seconds(value)}" for key, value in values.items())
        console.print(f"  {name.removesuffix('_s'):<6} {shown}")


def _finite(value: object) -> object:
    """Infinite and undefined numbers are null in JSON."""
    import math

    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
