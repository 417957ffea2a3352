"""Resolving what was asked for against the catalogue: the order, with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.capacity.result import Budget
from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Plan
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import UsageError
from deployctl.jobs.wanted import Wanted
from deployctl.units import parse_duration

MODES = ("quick", "standard", "certify")


@dataclass(frozen=True)
class Question:
    """What is to be measured of a served model: under which SLO, with which users, at what expense."""

    slo: SloEntry
    workload: Workload
    budget: Budget


@dataclass(frozen=True)
class Order:
    """What is to be deployed and measured: one plan, one model, one question."""

    plan: Plan
    model: ModelEntry
    reference: str
    question: Question
    catalog: Catalog
    insecure: bool = False  # the model is in the very registry whose address was given with http://


def resolve(wanted: Wanted, catalog: Catalog, model: ModelEntry | None = None) -> Order:
    """Look everything up; raises UsageError or ModelUnavailable naming the nearest entries.

    ``model`` is what was found of the wanted model elsewhere (default: what the catalogue has).
    """
    if wanted.plan is None:
        raise UsageError("no plan was named", hint="--plan ID (deployctl plans lists them)")
    plan = catalog.plan(wanted.plan)
    return Order(plan, model or catalog.model(wanted.model), wanted.model, ask(wanted, catalog, plan), catalog)


def ask(wanted: Wanted, catalog: Catalog, plan: Plan | None) -> Question:
    """The question, with the plan's SLO and workload where none was named, and ``chat`` where there is no plan."""
    return Question(
        slo=catalog.slo(wanted.slo or (plan.slo if plan else "chat")),
        workload=catalog.workload(wanted.workload or (plan.workload if plan else "chat")),
        budget=read_budget(wanted.budget),
    )


def read_budget(text: str) -> Budget:
    """``quick``, ``standard`` or ``certify`` set how hard to try; a duration also sets when to stop."""
    if text in MODES:
        return Budget(seconds=None, mode=text)  # type: ignore[arg-type]
    try:
        return Budget(seconds=parse_duration(text), mode="standard")
    except ValueError as error:
        raise UsageError(f"--budget {text}: not a budget", hint=f"one of {', '.join(MODES)}, or a time: 20m") from error
