"""Words the refusal: what each part needs, what the machine has, and the next thing to try."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Plan
from deployctl.errors import DoesNotFit
from deployctl.sizing.fit import Capacity, Fit
from deployctl.sizing.memory import disk_bytes, disk_suffices
from deployctl.units import format_bytes

Attempt = Callable[[ModelEntry, Capacity, Fit | None], Fit | None]
"""Tries a model on a machine, with the sizes of a given fit or with its own; None when it does not fit."""

NAMES = {
    "weights": "weights",
    "kv": "KV cache",
    "compute": "compute buffers",
    "prompt_cache": "prompt cache",
    "runtime": "runtime",
    "os_reserve": "reserve",
}


class TooLarge(DoesNotFit):
    """The refusal of sizing; ``miss`` is the smallest thing that was tried, with the bytes of its parts."""

    def __init__(self, message: str, *, miss: Fit, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.miss = miss


def explain(fit: Fit) -> str:
    """Return the parts of a fit in one line: ``weights 4.6 GiB, KV cache 256 MiB (2 × 1024 tokens), …``."""
    sizes = fit.bytes.to_dict()
    said = []
    for key, name in NAMES.items():
        if sizes[key]:
            detail = f" ({fit.slots} × {fit.context} tokens, {fit.kv_type})" if key == "kv" else ""
            said.append(f"{name} {format_bytes(sizes[key])}{detail}")
    return ", ".join(said)


def refusal(
    miss: Fit, capacity: Capacity, attempt: Attempt, *, plans: Iterable[Plan], models: Iterable[ModelEntry]
) -> TooLarge:
    """Return the error for ``miss``, the smallest thing that was tried and does not fit."""
    what = f"{miss.model.name} ({miss.variant})"
    if miss.bytes.total <= miss.bytes.available and not disk_suffices(miss.model, miss.variant, capacity):
        needed = disk_bytes(miss.model, miss.variant, capacity)
        has = format_bytes(capacity.disk_bytes or 0)
        message = f"{what} needs {format_bytes(needed)} of disk, {capacity.name} has {has}"
    else:
        message = (
            f"{what} needs {format_bytes(miss.bytes.total)}, {capacity.name} has {format_bytes(miss.bytes.available)}: "
            f"{explain(miss)}"
        )
    plan = smallest_plan(miss, attempt, plans)
    model = largest_model(miss, capacity, attempt, models)
    if plan is not None:
        message += f"; the smallest plan that fits: {plan.id}"
    if model is not None:
        message += f"; the largest model of its kind that fits here: {model.name}"
    hint = ""
    if model is not None:
        hint = f"--model {model.name}"
    if plan is not None:
        hint = f"--plan {plan.id}" + (f", or {hint}" if hint else "")
    return TooLarge(message, miss=miss, hint=hint or "try a smaller --context, --slots 1 or --kv-type q8_0")


def smallest_plan(miss: Fit, attempt: Attempt, plans: Iterable[Plan]) -> Plan | None:
    """Return the cheapest plan on which the model fits with the same context; without prices, the one of least memory.

    A plan with a GPU counts only if the whole model fits on its GPUs.
    """

    def cost(plan: Plan) -> tuple[float, float]:
        price = plan.price.amount * (730 if plan.price.per == "hour" else 1) if plan.price else float("inf")
        return price, plan.ram_gb + sum(gpu.vram_gb * gpu.count for gpu in plan.gpus)

    for plan in sorted(plans, key=cost):
        fit = attempt(miss.model, Capacity.of_plan(plan), miss)
        if fit is not None and (not plan.gpus or fit.fully_on_gpu):
            return plan
    return None


def largest_model(miss: Fit, capacity: Capacity, attempt: Attempt, models: Iterable[ModelEntry]) -> ModelEntry | None:
    """Return the largest model that fits, of the same family where there is one."""
    smaller = [entry for entry in models if entry.parameters < miss.model.parameters]
    kin = [entry for entry in smaller if entry.family == miss.model.family]
    for group in (kin, smaller):
        for entry in sorted(group, key=lambda entry: -entry.parameters):
            fit = attempt(entry, capacity, None)
            if fit is not None and (not capacity.gpus or fit.fully_on_gpu):
                return entry
    return None
