"""How `deployctl advise` shows its answer to people; it decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.cli.output import escape, print_table, stdout_console
from deployctl.sizing.advise import Advice
from deployctl.sizing.explain import VariantLine, part_detail, variant_lines
from deployctl.sizing.refuse import PARTS
from deployctl.sizing.words import Lang, label, say
from deployctl.units import format_bytes, format_rate, format_seconds


def show(
    advice: Advice, notes: tuple[str, ...], *, explain: bool, lang: Lang, workload: Workload, slo: SloEntry
) -> None:
    """Print the answer: a line, a table, the reasons; with ``explain`` also parts, variants and sources."""
    console = stdout_console()
    style = "green" if advice.verdict == "good" else "red"
    console.print(
        f"[bold]{escape(advice.model.name)}[/] {label('on', lang)} [bold]{escape(advice.plan.id)}[/]: "
        f"[{style}]{label(advice.verdict, lang)}[/]"
    )
    _rows(console, advice, lang)
    _bullets(console, advice.reasons)
    if advice.hint:
        console.print(f"  [dim]{label('try', lang)}[/] {escape(advice.hint)}", soft_wrap=True)
    if explain:
        _parts(console, advice, lang)
        lines = variant_lines(advice.plan, advice.model, workload, slo, advice.calibration)
        _variants(console, lines, chosen=advice.fit.variant if advice.fit else "", lang=lang)
        console.print(f"\n[bold]{label('sources', lang)}[/]")
        _bullets(console, (*advice.sources, *(say("source_fallback", lang, note=note) for note in notes)))
    else:
        for note in notes:
            console.print(f"  [yellow]![/] {escape(note)}", soft_wrap=True)


def _rows(console: Console, advice: Advice, lang: Lang) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    fit, predicted, cost = advice.fit, advice.predicted, advice.cost
    if fit is not None:
        key = "row_variant_one" if fit.slots == 1 else "row_variant"
        table.add_row(label("variant", lang), say(key, lang, variant=fit.variant, slots=fit.slots, context=fit.context))
        total, available = format_bytes(fit.bytes.total), format_bytes(fit.bytes.available)
        table.add_row(label("memory", lang), say("row_memory", lang, total=total, available=available))
    if predicted is not None:
        speed = say(
            "row_speed" if fit is not None and fit.slots > 1 else "row_speed_one",
            lang,
            decode=format_rate(predicted.decode_tok_s),
            full=format_rate(predicted.decode_full_tok_s),
            band=predicted.band,
            seconds=format_seconds(predicted.seconds_for_200_tokens),
            prefill=format_rate(predicted.prefill_tok_s),
        )
        table.add_row(label("speed", lang), speed)
        key = "row_users" if predicted.users else "row_users_none"
        users = say(key, lang, users=predicted.users, low=predicted.low, high=predicted.high, slo=advice.slo)
        table.add_row(label("users", lang), users)
    if cost is not None:
        month = f"{cost.per_month:,.0f}"
        if cost.per_user is None or cost.per_million_tokens is None:
            text = say("row_cost", lang, month=month, currency=cost.currency)
        else:
            user, million = _price(cost.per_user), _price(cost.per_million_tokens)
            text = say("row_cost_users", lang, month=month, currency=cost.currency, user=user, million=million)
        table.add_row(label("cost", lang), text)
    if fit is not None:
        table.add_row(label("hardware", lang), label(advice.hardware, lang))
    print_table(table)


def _parts(console: Console, advice: Advice, lang: Lang) -> None:
    shown = advice.fit or advice.miss
    if shown is None:
        return
    console.print(f"\n[bold]{label('parts', lang)}[/]")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    sizes = shown.bytes.to_dict()
    for key in (*PARTS, "total", "available"):
        table.add_row(label(key, lang), format_bytes(sizes[key]), escape(part_detail(shown, key, advice.plan, lang)))
    print_table(table)


def _variants(console: Console, lines: Iterable[VariantLine], *, chosen: str, lang: Lang) -> None:
    console.print(f"\n[bold]{label('variants', lang)}[/]")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(label("column_variant", lang), no_wrap=True)
    for name in ("slots", "memory", "speed", "users"):
        table.add_column(label(f"column_{name}", lang), justify="right", no_wrap=True)
    for line in lines:
        style = "bold" if line.variant == chosen else None
        if line.predicted is None:
            table.add_row(line.variant, "", format_bytes(line.total), say("explain_fails", lang), "", style=style)
            continue
        users = f"{line.predicted.users} ({line.predicted.low}–{line.predicted.high})"
        speed = format_rate(line.predicted.decode_tok_s)
        table.add_row(line.variant, str(line.slots), format_bytes(line.total), speed, users, style=style)
    print_table(table)


def _price(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:,.2f}"


def _bullets(console: Console, sentences: Iterable[str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(width=3, justify="right")
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row("·", escape(sentence))
    print_table(table)
