"""Loads the catalogue from the inventory files: the project's own where it has them, else what ships."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
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

    Models are read when they are first asked for: they are the longest file, and many commands need none. Raises
    CatalogError with file, line and the nearest key or name.
    """
    slos = read_entries(_file(project, "slos"), SloEntry, "SLO", "name")
    workloads = read_entries(_file(project, "workloads"), Workload, "workload", "name")
    plans = read_entries(_file(project, "plans"), Plan, "plan", "id")
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
    return Catalog(plans=plans, models=_Models(_file(project, "models")), slos=slos, workloads=workloads, hosts=hosts)


class _Models(Mapping[str, ModelEntry]):
    """The models of one file, read at the first look."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> ModelEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def _entries(self) -> dict[str, ModelEntry]:
        try:
            stamp = self._path.stat().st_mtime_ns
        except OSError:
            stamp = 0  # reading it says what is wrong
        return _read_models(self._path, stamp)


@lru_cache(maxsize=4)
def _read_models(path: Path, stamp: int) -> dict[str, ModelEntry]:
    """Read the file; ``stamp``, its time of change, makes an edited file a new one."""
    del stamp
    return read_entries(path, ModelEntry, "model", "name")


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
