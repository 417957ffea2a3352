"""deployctl up."""

from __future__ import annotations

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.wanting import place_of, wanted_of


def command(
    ctx: typer.Context,
    plan: opt.PlanId,
    model: opt.ModelRef,
    host: opt.Host = None,
    key: opt.KeyFile = None,
    passphrase: opt.Passphrase = None,
    password: opt.Password = None,
    sudo_password: opt.SudoPassword = None,
    jump: opt.Jump = None,
    host_key: opt.HostKey = None,
    accept_new: opt.AcceptNew = False,
    engine: opt.Engine = None,
    ollama_archive: opt.Archive = None,
    ollama_version: opt.OllamaVersion = None,
    ollama_mirror: opt.Mirror = None,
    ollama_sha256: opt.ArchiveSum = None,
    models_dir: opt.ModelsDir = None,
    allow_reboot: opt.AllowReboot = False,
    gguf: opt.Gguf = None,
    variant: opt.Variant = None,
    slots: opt.Slots = None,
    context: opt.Context = None,
    kv_type: opt.KvType = "f16",
    slo: opt.SloName = None,
    workload: opt.WorkloadName = None,
    registry: opt.RegistryUrl = None,
    offline: opt.Offline = False,
    probe: opt.Probe = True,
    budget: opt.BudgetText = "standard",
    max_users: opt.MaxUsers = None,
    seed: opt.Seed = 1,
    workers: opt.Workers = None,
    loadgen: opt.LoadHosts = None,
) -> None:
    """Provision a plan, serve a model on it, and find how many users it holds.

    Example: deployctl up --plan cpu-32gb --model llama3.1:8b --host root@203.0.113.7

    Every step is idempotent: on a host that is served already, only the measurement runs again.
    """
    from deployctl.cli.answers import show_provisioned, show_run
    from deployctl.cli.output import progress
    from deployctl.jobs.provision import provision
    from deployctl.jobs.up import up

    world = globals_of(ctx)
    wanted = wanted_of(ctx)
    with progress(verbose=world.verbose) as emit:
        if world.dry_run:
            planned = provision(wanted, project=world.project, place=place_of(world), emit=emit, dry_run=True)
        else:
            outcome = up(wanted, project=world.project, place=place_of(world), emit=emit)
    if world.dry_run:
        show_provisioned(planned, world, dry_run=True)
    else:
        show_run(outcome, world)
