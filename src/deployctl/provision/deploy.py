"""Bring a host to a served model, or take it down again: settings in, one playbook run out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployctl.errors import ModelUnavailable, ProvisionError
from deployctl.events import Emit
from deployctl.hosts.target import Target
from deployctl.provision import stamp
from deployctl.provision.playbook import Play, TaskFailed, run_playbook
from deployctl.provision.room import ensure_room
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session


# What to do by the kind of failure that the module model tells.
MODEL_HINTS = {
    "model_unavailable": "check the name (deployctl models)",
    "pull_broken": "run the same command again: it goes on where it stopped",
}


@dataclass(frozen=True)
class ModelFiles:
    """Which model, and where from: ``gguf`` is uploaded from here; without it the host pulls.

    ``digest`` is the SHA-256 of ``gguf`` (None: it is computed), or without ``gguf`` that of the manifest to insist on.
    ``bytes`` is about how much disk the weights take (0: not known). ``insecure``: pull over plain HTTP.
    """

    reference: str
    gguf: Path | None = None
    digest: str | None = None
    bytes: int = 0
    insecure: bool = False


def provision(
    target: Target,
    settings: Settings,
    source: Source,
    model: ModelFiles,
    *,
    project: Project,
    log: Path,
    emit: Emit,
    dry_run: bool = False,
    reboot: bool = False,
) -> Play:
    """Install the engine, run it with ``settings``, make the model available. Idempotent: a second run changes 0.

    ``dry_run`` connects and changes nothing; the Play's changed tasks then say what would be done. ``reboot`` allows
    to restart the host for a GPU's driver. Raises ModelUnavailable, HostUnreachable or ProvisionError.
    """
    if source.archive is None and source.url and not source.sha256:
        raise ProvisionError(f"no checksum for {source.url}", hint="give the archive's sha256 along with the URL")
    try:
        return run_playbook(
            "provision.yml",
            target,
            {**variables(target, settings, source, model), **drivers(settings, reboot=reboot)},
            project=project,
            log=log,
            emit=emit,
            step="provision",
            check=dry_run,
        )
    except TaskFailed as error:
        hint = MODEL_HINTS.get(str(error.failure.result.get("kind")))
        if hint is None:
            raise
        raise ModelUnavailable(
            f"{target.name}: {error.failure.message}",
            hint=f"{hint}, or bring the weights: --gguf FILE; the whole log: {log}",
        ) from error


def provision_where_needed(
    session: Session,
    settings: Settings,
    source: Source,
    model: ModelFiles,
    *,
    project: Project,
    log: Path,
    emit: Emit,
    reboot: bool = False,
    anyway: bool = False,
) -> Play:
    """Provision the session's host, or find that it is as the last run left it: then no playbook is run at all.

    With ``anyway`` they are run however it looks: something is wrong there that a look at our own work does not show.
    Where the host was restarted, the session is made anew. Raises what ``provision`` does.
    """
    target = session.target
    told = variables(target, settings, source, model)
    if not anyway and stamp.as_left(session, told, project):
        return Play(ok=0, changed=0, failed=0, skipped=0)
    ensure_room(session, source, model, settings.models_dir)
    stamp.forget(session)
    play = provision(target, settings, source, model, project=project, log=log, emit=emit, reboot=reboot)
    if play.facts.get("rebooted"):
        session.renew()
    stamp.note(session, told, project)
    return play


def teardown(
    target: Target,
    *,
    purge: bool,
    project: Project,
    log: Path,
    emit: Emit,
    dry_run: bool = False,
) -> Play:
    """Stop and remove the server and its files; with ``purge`` models, user, group and home as well."""
    return run_playbook(
        "teardown.yml",
        target,
        {"ollama_service_manager": target.service_manager, "teardown_purge": purge},
        project=project,
        log=log,
        emit=emit,
        step="down",
        check=dry_run,
    )


def rollback(target: Target, *, port: int, project: Project, log: Path, emit: Emit, dry_run: bool = False) -> Play:
    """Bring the previous program and settings back; raises ProvisionError where there are none."""
    return run_playbook(
        "rollback.yml",
        target,
        {"ollama_service_manager": target.service_manager, "ollama_port": port},
        project=project,
        log=log,
        emit=emit,
        step="rollback",
        check=dry_run,
    )


def extra_environment(settings: Settings) -> dict[str, str]:
    """What no setting covers: no look-ups on the makers' servers, and threads that do not spin while they wait.

    llama.cpp's OpenMP threads spin by default; where a neighbour wants the cores, that costs most of the speed.
    """
    spin = {"GOMP_SPINCOUNT": "1000"} if settings.threads else {}
    return {"OLLAMA_NO_CLOUD": "1", **spin}


def drivers(settings: Settings, *, reboot: bool) -> dict[str, bool]:
    """What the roles for GPUs are told: to see to drivers where the plan has a GPU, and whether they may restart it."""
    gpu = settings.threads is None
    return {"nvidia_enabled": gpu, "amd_enabled": gpu, "nvidia_reboot": reboot, "amd_reboot": reboot}


def variables(target: Target, settings: Settings, source: Source, model: ModelFiles) -> Mapping[str, Any]:
    """The roles' variables for a deployment. Pure; the names are documented in the roles' defaults."""
    archive = str(source.archive) if source.archive is not None else ""
    return {
        "ollama_service_manager": target.service_manager,
        "bootstrap_packages": [] if (archive or source.url or "").endswith((".tgz", ".tar.gz")) else ["zstd"],
        "hardening_gpu": settings.threads is None,
        "ollama_version": source.version,
        "ollama_archive": archive,
        "ollama_url": "" if archive else source.url or "",
        "ollama_sha256": source.sha256 or "",
        "ollama_port": settings.port,
        "ollama_slots": settings.slots,
        "ollama_context": settings.context,
        "ollama_threads": settings.threads or 0,
        "ollama_keep_alive": settings.keep_alive,
        "ollama_flash_attention": settings.flash_attention,
        "ollama_kv_cache_type": settings.kv_cache_type,
        "ollama_prompt_cache_mib": settings.prompt_cache_mib,
        "ollama_max_queue": settings.max_queue,
        "ollama_load_timeout": settings.load_timeout,
        "ollama_extra_environment": extra_environment(settings),
        **({"ollama_models_dir": settings.models_dir} if settings.models_dir else {}),
        "model_name": model.reference,
        "model_gguf": str(model.gguf) if model.gguf is not None else "",
        "model_digest": model.digest or "",
        "model_insecure": model.insecure,
    }
