"""The whole catalogue, and look-ups by name that offer the nearest name when there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from deployctl.catalog.hosts import HostEntry
from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Plan
from deployctl.catalog.reading import nearest
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import ModelUnavailable, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Catalog:
    """Plans, models, SLOs, workloads and hosts by name."""

    plans: Mapping[str, Plan]
    models: Mapping[str, ModelEntry]
    slos: Mapping[str, SloEntry]
    workloads: Mapping[str, Workload]
    hosts: Mapping[str, HostEntry]

    def plan(self, plan_id: str) -> Plan:
        """Return the plan; raises UsageError naming the nearest ids."""
        return _get(self.plans, plan_id, "plan", "deployctl plans")

    def slo(self, name: str) -> SloEntry:
        """Return the SLO; raises UsageError naming the nearest."""
        return _get(self.slos, name, "SLO", "see inventory/slos.yml")

    def workload(self, name: str) -> Workload:
        """Return the workload; raises UsageError naming the nearest."""
        return _get(self.workloads, name, "workload", "see inventory/workloads.yml")

    def host(self, name: str) -> HostEntry:
        """Return the host of inventory/hosts.yml; raises UsageError naming the nearest."""
        return _get(self.hosts, name, "host", "list it in inventory/hosts.yml, or give --host user@address[:port]")

    def model(self, reference: str) -> ModelEntry:
        """Return the model that an Ollama reference means, with or without a variant in its tag.

        ``llama3.1`` means ``llama3.1:latest``. `ModelEntry.variant_named` says which variant the reference asks for.
        Raises ModelUnavailable naming the nearest references.
        """
        wanted = reference.strip().lower()
        if ":" not in wanted:
            wanted += ":latest"
        for entry in self.models.values():
            if wanted in entry.names or entry.variant_named(wanted) is not None:
                return entry
        offered = nearest_models(reference, self.models.values())
        raise ModelUnavailable(
            f"the catalogue has no model {reference}" + (f"; nearest: {', '.join(offered)}" if offered else ""),
            hint="deployctl models",
        )


def nearest_models(reference: str, models: Iterable[ModelEntry], count: int = 3) -> list[str]:
    """Return the catalogue's references nearest to ``reference``, always at least one when there is any model.

    First come those of the same family, then what is spelled much alike, then the same size, then any likeness.
    """
    known = list(models)
    family, _, tag = reference.strip().lower().partition(":")
    names = [entry.name for entry in known]
    by_family = [entry.name for entry in known if entry.family.lower() == family]
    by_size = [entry.name for entry in known if tag and entry.name.lower().partition(":")[2] == tag]
    latest = {alias.partition(":")[0]: entry.name for entry in known for alias in entry.aliases}
    untagged = [] if tag else [latest[name] for name in nearest(family, latest, count)]
    alike = [*untagged, *nearest(reference, names, count, 0.75), *nearest(reference, by_size, count, 0.0)]
    ordered = [*nearest(reference, by_family, count), *by_family, *alike, *nearest(reference, names, count)]
    ordered += [] if ordered else [entry.name for entry in known]
    return list(dict.fromkeys(ordered))[:count]


def _get(entries: Mapping[str, T], name: str, word: str, hint: str) -> T:
    try:
        return entries[name]
    except KeyError:
        near = nearest(name, entries)
        known = f"; nearest: {', '.join(near)}" if near else f"; known: {', '.join(entries) or 'none'}"
        raise UsageError(f"there is no {word} {name}{known}", hint=hint) from None
