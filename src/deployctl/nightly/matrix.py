"""What the nights measure: inventory/nightly.yml, and the tasks that it stands for. Pure but for reading the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from deployctl.catalog.base import Entry
from deployctl.catalog.catalog import Catalog
from deployctl.catalog.reading import read_entries, shown
from deployctl.errors import CatalogError
from deployctl.nightly.windows import Window
from deployctl.units import parse_duration

FILE = "inventory/nightly.yml"


class Group(Entry):
    """Some hosts × some models × some workloads. An empty list stands for what the plan of the host says.

    ``hosts``: names of inventory/hosts.yml, or addresses; empty: all hosts of ``plan``, or all that have a plan.
    ``models``: empty: those that the plan makes promises for. ``workloads``: empty: the plan's. ``url`` measures a
    server that is reachable without a host. ``budget``: time of one measurement. ``retries``: how often a host that was
    busy or away is asked again at the end of the night. ``provision``: bring the host up to date first; without it,
    what is served there is measured as it is.
    """

    name: str
    hosts: tuple[str, ...] = ()
    plan: str | None = None
    url: str | None = Field(default=None, pattern=r"^http://[^\s/@]+$")
    models: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    slo: str | None = None
    engine: Literal["ollama", "embedded"] | None = None
    window: Window | None = None
    budget: str = "20m"
    retries: int = Field(default=1, ge=0, le=10)
    provision: bool = True
    max_users: int | None = Field(default=None, ge=1)
    slots: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Task:
    """One measurement of a night. ``host`` None: the plan's own (the sandbox), or ``url``."""

    group: str
    host: str | None
    plan: str | None
    model: str
    workload: str
    slo: str
    budget: str
    retries: int
    provision: bool
    url: str | None = None
    engine: Literal["ollama", "embedded"] | None = None
    max_users: int | None = None
    slots: int | None = None

    @property
    def key(self) -> str:
        """Its name: the same every night."""
        return f"{self.place} · {self.model} · {self.workload} · {self.slo}"

    @property
    def place(self) -> str:
        """The host that it takes up: never two tasks at once there."""
        return self.url or self.host or self.plan or ""

    @property
    def stale_key(self) -> tuple[str, str, str]:
        """As the index names what was measured."""
        return ("" if self.url else self.host or self.plan or "", self.model, self.workload)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @property
    def seconds(self) -> float:
        """What it may take, roughly, in seconds: its budget, and a tenth more for the rest."""
        try:
            return 1.1 * parse_duration(self.budget)
        except ValueError:
            return {"quick": 660.0, "standard": 3960.0}.get(self.budget, 86400.0)


def read_matrix(path: Path) -> dict[str, Group]:
    """Read the file; raises CatalogError with file and line."""
    return read_entries(path, Group, "group", "name")


def tasks_of(groups: Mapping[str, Group], catalog: Catalog, source: Path) -> list[Task]:
    """Spell the groups out, in their order and without repetition. Raises CatalogError for a group without tasks."""
    found: dict[str, Task] = {}
    for group in groups.values():
        made = list(_of(group, catalog))
        if not made:
            raise CatalogError(
                f"{shown(source)}: group {group.name} measures nothing: its hosts have no plan with promises",
                hint="name hosts and models, or a plan",
            )
        for task in made:
            found.setdefault(task.key, task)
    if not found:
        raise CatalogError(f"{shown(source)} names nothing to measure")
    return list(found.values())


def _of(group: Group, catalog: Catalog) -> Iterable[Task]:
    for host, plan_id in _places(group, catalog):
        plan = catalog.plan(plan_id) if plan_id else None
        for model in group.models or (tuple(plan.promises) if plan else ()):
            promise = plan.promises.get(model) if plan else None
            slo = group.slo or (promise.slo if promise else plan.slo if plan else "chat")
            catalog.slo(slo)
            for workload in group.workloads or ((plan.workload if plan else "chat"),):
                catalog.workload(workload)
                yield Task(
                    group=group.name,
                    host=host,
                    plan=plan_id,
                    model=model,
                    workload=workload,
                    slo=slo,
                    budget=group.budget,
                    retries=group.retries,
                    provision=group.provision,
                    url=group.url,
                    engine=group.engine,
                    max_users=group.max_users,
                    slots=group.slots,
                )


def _places(group: Group, catalog: Catalog) -> list[tuple[str | None, str | None]]:
    if group.url is not None:
        return [(None, group.plan)]
    if group.hosts:
        return [(host, group.plan or _plan_of(host, catalog)) for host in group.hosts]
    if group.plan == "sandbox":
        return [(None, "sandbox")]
    return [(host.name, host.plan) for host in catalog.hosts.values() if host.plan and group.plan in (None, host.plan)]


def _plan_of(host: str, catalog: Catalog) -> str | None:
    return catalog.hosts[host].plan if host in catalog.hosts else None


def by_staleness(tasks: Iterable[Task], last: Mapping[tuple[str, str, str], datetime]) -> list[Task]:
    """Order tasks: never measured first, then the longest ago; among equals as the file has them."""
    never = [task for task in tasks if task.stale_key not in last]
    known = [task for task in tasks if task.stale_key in last]
    return [*never, *sorted(known, key=lambda task: last[task.stale_key])]
