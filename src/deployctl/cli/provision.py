"""deployctl provision."""

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
    limit: opt.Limit = None,
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
) -> None:
    """Install and start the engine and the model on a host, sized for the plan; measure nothing."""
    from deployctl.cli.answers import show_provisioned
    from deployctl.cli.fleet import on_fleet
    from deployctl.cli.output import progress
    from deployctl.jobs.provision import provision

    world = globals_of(ctx)
    if limit is not None:
        on_fleet(ctx, provision)
        return
    with progress(verbose=world.verbose) as emit:
        done = provision(wanted_of(ctx), project=world.project, place=place_of(world), emit=emit, dry_run=world.dry_run)
    show_provisioned(done, world, dry_run=world.dry_run)
