"""deployctl advise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.errors import NegativeAnswer, UsageError

if TYPE_CHECKING:
    from deployctl.catalog.catalog import Catalog
    from deployctl.cli.context import Globals
    from deployctl.sizing.advise import Advice
    from deployctl.sizing.calibration import Calibration
    from deployctl.sizing.words import Lang

BAD = ("does not fit", "slow or impossible", "too few users")


def command(
    ctx: typer.Context,
    model: opt.ModelRef,
    plan: Annotated[str | None, typer.Option("--plan", help="The plan; without it, the cheapest for --users.")] = None,
    users: Annotated[int | None, typer.Option("--users", min=1, help="How many users are wanted.")] = None,
    variant: opt.Variant = None,
    slots: opt.Slots = None,
    context: opt.Context = None,
    kv_type: opt.KvType = "f16",
    slo: opt.SloName = None,
    workload: opt.WorkloadName = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the bytes of every part, every variant, and the sources.")
    ] = False,
    lang: Annotated[str, typer.Option("--lang", help="en or es.")] = "en",
    gguf: opt.Gguf = None,
    url: Annotated[
        str | None, typer.Option("--url", help="An Ollama that has the model: its facts are asked there first.")
    ] = None,
    registry: opt.RegistryUrl = None,
    offline: opt.Offline = False,
) -> None:
    """Say which variant fits a plan, how fast it will be and for how many users; no host is touched.

    The figures are predictions with a band, never promises: deployctl up measures. Runs kept here correct them.
    """
    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json
    from deployctl.jobs.facts import fallback, find_facts
    from deployctl.jobs.order import ask
    from deployctl.jobs.reach import SANDBOX
    from deployctl.jobs.wanted import KvType, Wanted
    from deployctl.sizing.advise import advise, cheapest
    from deployctl.sizing.words import say

    if lang not in ("en", "es"):
        raise UsageError(f"--lang {lang}: not one of en, es")
    if kv_type not in get_args(KvType):
        raise UsageError(f"--kv-type {kv_type}: not one of {', '.join(get_args(KvType))}")
    if plan is None and users is None:
        raise UsageError("neither a plan nor a number of users was named", hint="--plan ID, or --users N")
    tongue: Lang = "es" if lang == "es" else "en"
    world = globals_of(ctx)
    catalog = load_catalog(world.project)
    sold = catalog.plan(plan) if plan else None
    wanted = Wanted(model=model, plan=plan, slo=slo, workload=workload, gguf=gguf, registry=registry, offline=offline)
    question = ask(wanted, catalog, sold)
    facts = find_facts(wanted, catalog, world.project, world.cache_dir, ollama=url)
    asked = {
        "variant": variant or facts.model.variant_named(model),
        "context": context,
        "slots": slots,
        "kv_type": kv_type,
    }
    calibrations = _calibrations(world, catalog)
    found: Advice | None
    if sold is None:
        assert users is not None
        found = cheapest(
            catalog.plans.values(), facts.model, question.workload, question.slo, users,
            calibrations=calibrations, lang=tongue, **asked,
        )  # fmt: skip
        if found is None:
            raise NegativeAnswer(
                say("no_plan", tongue, users=users, model=model, slo=question.slo.name),
                hint=say("hint_fewer", tongue),
            )
    else:
        found = advise(
            sold, facts.model, question.workload, question.slo,
            last_logits=sold.id == SANDBOX,
            users=users, calibration=calibrations.get(sold.id), plans=catalog.plans.values(),
            models=catalog.models.values(), lang=tongue, **asked,  # type: ignore[arg-type]
        )  # fmt: skip
    notes = fallback(facts)
    if world.json:
        print_json({**found.to_dict(), "facts": facts.origin, "notes": list(notes)})
    else:
        from deployctl.cli.advice import show

        show(found, notes, explain=explain, lang=tongue, workload=question.workload, slo=question.slo)
    if found.verdict in BAD:
        raise typer.Exit(NegativeAnswer.exit_code)


def _calibrations(world: Globals, catalog: Catalog) -> dict[str, Calibration]:
    """Return what the runs that are kept here say, by plan."""
    from deployctl.jobs.calibrate import calibration_for, past_records

    records = list(past_records(world.data_dir))
    found = {plan.id: calibration_for(plan, catalog, records) for plan in catalog.plans.values() if records}
    return {name: calibration for name, calibration in found.items() if calibration is not None}
