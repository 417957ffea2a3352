"""Loads the catalogue from the inventory files: the project's own where it has them, else what ships."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.hosts import HostEntry
from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Plan
from deployctl.catalog.reading import Loc, line_of, nearest, read_entries, shown
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import CatalogError
from deployctl.resources import Project


def load_catalog(project: Project) -> Catalog:
    """Read inventory/{plans,models,slos,workloads,hosts}.yml; only hosts.yml may be absent.

    Raises CatalogError with file, line and the nearest key or name.
    """
    slos = read_entries(_file(project, "slos"), SloEntry, "SLO", "name")
    workloads = read_entries(_file(project, "workloads"), Workload, "workload", "name")
    plans = read_entries(_file(project, "plans"), Plan, "plan", "id")
    models = read_entries(_file(project, "models"), ModelEntry, "model", "name")
    hosts: dict[str, HostEntry] = {}
    try:
        hosts_file = project.path("inventory/hosts.yml")
    except FileNotFoundError:
        pass
    else:
        hosts = read_entries(hosts_file, HostEntry, "host", "name")
        for host in hosts.values():
            if host.plan is not None:
                _refer(hosts_file, (host.name, "plan"), f"host {host.name}", "plan", host.plan, plans)
    plans_file = _file(project, "plans")
    for plan in plans.values():
        _refer(plans_file, (plan.id, "slo"), f"plan {plan.id}", "SLO", plan.slo, slos)
        _refer(plans_file, (plan.id, "workload"), f"plan {plan.id}", "workload", plan.workload, workloads)
        for model, promise in plan.promises.items():
            where: Loc = (plan.id, "promises", model, "slo")
            _refer(plans_file, where, f"plan {plan.id}, promise for {model}", "SLO", promise.slo, slos)
    return Catalog(plans=plans, models=models, slos=slos, workloads=workloads, hosts=hosts)


def _file(project: Project, name: str) -> Path:
    try:
        return project.path(f"inventory/{name}.yml")
    except FileNotFoundError as error:
        raise CatalogError(str(error), hint="install deployctl again, or give --project DIR") from error


def _refer(path: Path, loc: Loc, owner: str, word: str, name: str, known: Collection[str]) -> None:
    if name in known:
        return
    line = line_of(path, loc)
    near = nearest(name, known, 1)
    raise CatalogError(
        f"{shown(path)}{'' if line is None else f':{line}'}: {owner} names {word} '{name}', which does not exist"
        + (f"; did you mean '{near[0]}'?" if near else f" (known: {', '.join(known)})"),
        hint=f"edit {shown(path)}",
    )
