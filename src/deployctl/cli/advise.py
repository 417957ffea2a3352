"""deployctl advise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.errors import NegativeAnswer, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from deployctl.sizing.advise import Advice

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
    explain: Annotated[bool, typer.Option("--explain", help="Show the bytes of every part and the sources.")] = False,
    lang: Annotated[str, typer.Option("--lang", help="en or es.")] = "en",
) -> None:
    """Say which variant fits a plan, how fast it will be and for how many users; no host is touched.

    The figures are predictions with a band, never promises: deployctl up measures.
    """
    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json
    from deployctl.jobs.order import ask
    from deployctl.jobs.wanted import KvType, Wanted
    from deployctl.sizing.advise import advise, cheapest

    if lang not in ("en", "es"):
        raise UsageError(f"--lang {lang}: not one of en, es")
    if kv_type not in get_args(KvType):
        raise UsageError(f"--kv-type {kv_type}: not one of {', '.join(get_args(KvType))}")
    if plan is None and users is None:
        raise UsageError("neither a plan nor a number of users was named", hint="--plan ID, or --users N")
    world = globals_of(ctx)
    catalog = load_catalog(world.project)
    entry = catalog.model(model)
    sold = catalog.plan(plan) if plan else None
    question = ask(Wanted(model=model, plan=plan, slo=slo, workload=workload), catalog, sold)
    if sold is None:
        assert users is not None
        found = cheapest(
            catalog.plans.values(), entry, question.workload, question.slo, users, lang="es" if lang == "es" else "en"
        )
        if found is None:
            raise NegativeAnswer(
                f"no plan of the catalogue is predicted to hold {users} users of {model} under SLO {question.slo.name}",
                hint="a smaller model, a wider SLO, or fewer users",
            )
    else:
        found = advise(
            sold,
            entry,
            question.workload,
            question.slo,
            variant=variant or entry.variant_named(model),
            context=context,
            slots=slots,
            kv_type=kv_type,  # type: ignore[arg-type]
            users=users,
            plans=catalog.plans.values(),
            models=catalog.models.values(),
            lang="es" if lang == "es" else "en",
        )
    if world.json:
        print_json(found.to_dict())
    else:
        _show(found, explain=explain)
    if found.verdict in BAD:
        raise typer.Exit(NegativeAnswer.exit_code)


def _show(advice: Advice, *, explain: bool) -> None:
    from rich.table import Table

    from deployctl.cli.output import escape, stdout_console
    from deployctl.units import format_bytes, format_seconds

    console = stdout_console()
    style = "red" if advice.verdict in BAD else "green"
    console.print(
        f"[bold]{escape(advice.model.name)}[/] on [bold]{escape(advice.plan.id)}[/]: [{style}]{advice.verdict}[/]"
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    fit, predicted, cost = advice.fit, advice.predicted, advice.cost
    if fit is not None:
        table.add_row(
            "variant", f"{fit.variant}, {fit.slots} slot{'s' if fit.slots > 1 else ''} of {fit.context} tokens"
        )
        table.add_row("memory", f"{format_bytes(fit.bytes.total)} of {format_bytes(fit.bytes.available)}")
    if predicted is not None:
        table.add_row("users", f"{predicted.users} (between {predicted.low} and {predicted.high}), predicted")
        table.add_row(
            "speed",
            f"{predicted.decode_tok_s:.1f} tokens/s for one user, 200 tokens in "
            f"{format_seconds(predicted.seconds_for_200_tokens)}; prompts at {predicted.prefill_tok_s:.0f} tokens/s",
        )
    if cost is not None:
        each = f", {cost.per_user:,.2f} a user" if cost.per_user is not None else ""
        tokens = f", {cost.per_million_tokens:,.2f} a million tokens" if cost.per_million_tokens is not None else ""
        table.add_row("cost", f"{cost.per_month:,.0f} {cost.currency} a month{each}{tokens}")
    table.add_row("wants", f"a {advice.hardware.upper()}")
    console.print(table)
    console.print(_bullets(advice.reasons))
    if advice.hint:
        console.print(f"  [dim]try:[/] {escape(advice.hint)}")
    if explain:
        parts = fit.bytes.to_dict() if fit else advice.sizes
        console.print("\n[bold]bytes[/]")
        for name, size in parts.items():
            console.print(f"  {name.replace('_', ' '):<13} {format_bytes(size):>10}")
        console.print("\n[bold]sources[/]")
        console.print(_bullets(advice.sources))


def _bullets(sentences: tuple[str, ...]) -> Table:
    from rich.table import Table

    from deployctl.cli.output import escape

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(width=3, justify="right")
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row("·", escape(sentence))
    return table
