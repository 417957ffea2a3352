"""Install and start, or say what would change, or take it all away again: the jobs without a measurement."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from deployctl.catalog.load import load_catalog
from deployctl.errors import Cancelled
from deployctl.events import Emit, Warned, step
from deployctl.jobs.deploy import deploy, plan_deployment, sandbox_port, size_plan
from deployctl.jobs.facts import informed
from deployctl.jobs.guard import guarded
from deployctl.jobs.overrides import announce
from deployctl.jobs.reach import reach
from deployctl.jobs.recording import Stopwatch
from deployctl.jobs.wanted import Place, Wanted
from deployctl.ollama.client import Installed
from deployctl.provision.deploy import provision as run_provision
from deployctl.provision.deploy import rollback as run_rollback
from deployctl.provision.deploy import teardown
from deployctl.provision.playbook import Play
from deployctl.provision.room import ensure_room
from deployctl.provision.settings import Settings
from deployctl.provision.stamp import forget
from deployctl.resources import Project
from deployctl.sizing.fit import Fit


@dataclass(frozen=True)
class Provisioned:
    """What provisioning did (or, in a dry run, would do)."""

    host: str
    fit: Fit | None
    play: Play
    timings: dict[str, float]
    model: Installed | None = None


def provision(
    wanted: Wanted, *, project: Project, place: Place, emit: Emit, dry_run: bool = False, log: Path | None = None
) -> Provisioned:
    """Bring the host to a loaded model; with ``dry_run`` connect, compare and change nothing.

    Ansible's output is appended to ``log``, by default provision.log of the data directory.
    """
    watch = Stopwatch(emit)
    announce(project, watch)
    catalog = load_catalog(project)
    order = informed(wanted, catalog, project, place, watch)
    size_plan(wanted, order)
    log = log or place.data_dir / "provision.log"
    try:
        with reach(wanted, catalog, place, watch) as reached:
            host = str(reached.target)
            if not dry_run:
                if reached.sandbox:
                    emit(Warned("the sandbox is switched off when this command ends; its disk is kept"))
                with deploy(wanted, order, reached, project, place, log, watch) as served:
                    return Provisioned(host, served.fit, served.play, watch.timings, served.loaded.model)
            planned = plan_deployment(wanted, order, reached, place, watch)
            with step(watch, "provision", "Looking what would change") as current:
                ensure_room(reached.session, planned.source, planned.model, planned.settings.models_dir)
                play = run_provision(
                    reached.target,
                    planned.settings,
                    planned.source,
                    planned.model,
                    project=project,
                    log=log,
                    emit=watch,
                    dry_run=True,
                )
                current.detail = f"{play.changed} of {play.ok} tasks would change something; nothing was changed"
            return Provisioned(host, planned.fit, play, watch.timings)
    except KeyboardInterrupt:
        raise Cancelled("cancelled; provisioning is idempotent: run the same command again") from None


def down(
    wanted: Wanted,
    *,
    purge: bool,
    project: Project,
    place: Place,
    emit: Emit,
    dry_run: bool = False,
    log: Path | None = None,
) -> Provisioned:
    """Remove the engine from the host; with ``purge`` the models, the user and its home as well."""
    watch = Stopwatch(emit)
    announce(project, watch)
    catalog = load_catalog(project)
    if wanted.plan is not None:
        catalog.plan(wanted.plan)
    log = log or place.data_dir / "provision.log"
    try:
        with reach(wanted, catalog, place, watch) as reached:
            guard = nullcontext() if dry_run else guarded(reached, "down", keep_audit=not purge)
            with guard, step(watch, "teardown", "Removing") as current:
                if not dry_run:
                    forget(reached.session)
                play = teardown(reached.target, purge=purge, project=project, log=log, emit=watch, dry_run=dry_run)
                current.detail = f"{play.ok} tasks, {play.changed} {'would change' if dry_run else 'changed'}"
            host = str(reached.target)
    except KeyboardInterrupt:
        raise Cancelled("cancelled; run the same command again") from None
    return Provisioned(host, None, play, watch.timings)


def rollback(
    wanted: Wanted, *, project: Project, place: Place, emit: Emit, dry_run: bool = False, log: Path | None = None
) -> Provisioned:
    """Bring back the program, unit and settings that served before the last change; the models stay as they are."""
    watch = Stopwatch(emit)
    announce(project, watch)
    catalog = load_catalog(project)
    if wanted.plan is not None:
        catalog.plan(wanted.plan)
    log = log or place.data_dir / "provision.log"
    try:
        with reach(wanted, catalog, place, watch) as reached:
            port = sandbox_port(place.sandbox) if reached.sandbox else Settings.port
            guard = nullcontext() if dry_run else guarded(reached, "rollback")
            with guard, step(watch, "rollback", "Going back") as current:
                if not dry_run:
                    forget(reached.session)
                play = run_rollback(reached.target, port=port, project=project, log=log, emit=watch, dry_run=dry_run)
                current.detail = f"to {play.facts.get('restored') or 'what it is already'}"
            return Provisioned(str(reached.target), None, play, watch.timings)
    except KeyboardInterrupt:
        raise Cancelled("cancelled; run the same command again") from None
