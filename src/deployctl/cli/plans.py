"""deployctl plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deployctl.cli.app import globals_of

if TYPE_CHECKING:
    from deployctl.catalog.plans import Plan, Promise


def command(
    ctx: typer.Context,
    plan: Annotated[str | None, typer.Argument(help="Only this one, in full.")] = None,
) -> None:
    """List the plans that are sold, or show one."""
    from deployctl.catalog.load import load_catalog
    from deployctl.cli.output import print_json

    world = globals_of(ctx)
    catalog = load_catalog(world.project)
    chosen = [catalog.plan(plan)] if plan else list(catalog.plans.values())
    if world.json:
        documents = [entry.model_dump(mode="json") for entry in chosen]
        print_json(documents[0] if plan else documents)
    elif plan:
        _show(chosen[0])
    else:
        _list(chosen)


def _list(plans: list[Plan]) -> None:
    from rich.table import Table

    from deployctl.cli.output import print_table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("PLAN", "left"), ("CPUS", "right"), ("RAM", "right"), ("GPU", "left"), ("PRICE", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("PROMISES", overflow="fold")
    for entry in plans:
        promises = ", ".join(
            f"{model}: {promise.users} user{'s' if promise.users != 1 else ''}"
            for model, promise in entry.promises.items()
            if promise.users
        )
        table.add_row(entry.id, str(entry.vcpus), f"{entry.ram_gb:g} GB", _gpus(entry), _price(entry), promises)
    print_table(table)


def _show(plan: Plan) -> None:
    from deployctl.cli.output import escape, print_table, rows_table, stdout_console

    bandwidth = plan.memory_bandwidth_gb_s
    reads = f", memory at {bandwidth:g} GB/s" if bandwidth else ""
    cpu_class = f" ({plan.cpu_class})" if plan.cpu_class else ""
    rows = {
        "CPUs": f"{plan.vcpus}{cpu_class}{reads}",
        "RAM": f"{plan.ram_gb:g} GB",
        "disk": f"{plan.disk_gb:g} GB",
        "GPU": ", ".join(
            f"{gpu.count} × {gpu.model}, {gpu.vram_gb:g} GB each"
            + (f", {gpu.memory_bandwidth_gb_s:,.0f} GB/s" if gpu.memory_bandwidth_gb_s else "")
            for gpu in plan.gpus
        ),
        "price": _price(plan),
        "SLO": f"{plan.slo}, with the workload {plan.workload}",
    }
    stdout_console().print(f"[bold]{escape(plan.id)}[/]{escape(f': {plan.title}' if plan.title else '')}")
    print_table(rows_table({name: value for name, value in rows.items() if value}))
    for model, promise in plan.promises.items():
        stdout_console().print(f"promises {escape(model)}: {_promise(promise)}", soft_wrap=True)
    stdout_console().print(f"[dim]try:[/] deployctl advise --plan {plan.id} --model llama3.1:8b", soft_wrap=True)


def _promise(promise: Promise) -> str:
    said = []
    if promise.users:
        said.append(f"{promise.users} user{'s' if promise.users != 1 else ''} under the SLO {promise.slo}")
    if promise.tokens_per_s:
        said.append(f"{promise.tokens_per_s:g} tokens/s or more for one")
    if promise.seconds_for_200_tokens:
        said.append(f"200 tokens within {promise.seconds_for_200_tokens:g} s")
    return ", ".join(said)


def _gpus(plan: Plan) -> str:
    return ", ".join(f"{gpu.count} × {gpu.model}" if gpu.count > 1 else gpu.model for gpu in plan.gpus)


def _price(plan: Plan) -> str:
    return f"{plan.price.amount:,.0f} {plan.price.currency}/{plan.price.per}" if plan.price else ""
