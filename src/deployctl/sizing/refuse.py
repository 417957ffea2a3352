"""Words the refusal: what each part needs, what the machine has, and which lever would help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from deployctl.catalog.models import ModelEntry, quality
from deployctl.catalog.plans import Plan, monthly
from deployctl.errors import DoesNotFit
from deployctl.sizing.fit import Capacity, Fit, KvType
from deployctl.sizing.memory import KV_BYTES, disk_bytes, disk_suffices
from deployctl.sizing.words import Lang, label, say
from deployctl.units import format_bytes

PARTS = ("weights", "kv", "compute", "prompt_cache", "runtime", "os_reserve")


class Attempt(Protocol):
    """Tries a model on a machine; what is not given is chosen. None when it does not fit."""

    def __call__(
        self,
        model: ModelEntry,
        capacity: Capacity,
        *,
        variant: str | None = None,
        slots: int | None = None,
        context: int | None = None,
        kv_type: KvType | None = None,
    ) -> Fit | None:
        """Return the fit."""


class TooLarge(DoesNotFit):
    """The refusal of sizing; ``miss`` is the smallest thing that was tried, with the bytes of its parts."""

    def __init__(self, message: str, *, miss: Fit, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.miss = miss


@dataclass(frozen=True)
class Refused:
    """What was asked for and did not fit: the miss, and whether variant and slots were the user's own."""

    miss: Fit
    capacity: Capacity
    variant_asked: bool
    slots_asked: bool
    lang: Lang = "en"


def explain(fit: Fit, lang: Lang = "en") -> str:
    """Return the parts of a fit in one line: ``weights 4.6 GiB, KV cache 256 MiB (2 × 1024 tokens), …``."""
    sizes = fit.bytes.to_dict()
    said = []
    for key in PARTS:
        if sizes[key]:
            detail = say("kv_detail", lang, slots=fit.slots, context=fit.context, kv_type=fit.kv_type)
            said.append(f"{label(key, lang)} {format_bytes(sizes[key])}" + (f" ({detail})" if key == "kv" else ""))
    return ", ".join(said)


def refusal(refused: Refused, attempt: Attempt, *, plans: Iterable[Plan], models: Iterable[ModelEntry]) -> TooLarge:
    """Return the error for what was refused, with every lever that was tried and does help."""
    miss, capacity, lang = refused.miss, refused.capacity, refused.lang
    what = f"{miss.model.name} ({miss.variant})"
    if refused.slots_asked and miss.slots > 1:
        what = say("miss_slots", lang, what=what, slots=miss.slots, context=miss.context)
    machine = machine_words(capacity, lang)
    if miss.bytes.total <= miss.bytes.available and not disk_suffices(miss.model, miss.variant, capacity):
        needed = format_bytes(disk_bytes(miss.model, miss.variant, capacity))
        said = [
            say(
                "miss_disk", lang, what=what, needed=needed, machine=machine, has=format_bytes(capacity.disk_bytes or 0)
            )
        ]
    else:
        needed, has = format_bytes(miss.bytes.total), format_bytes(miss.bytes.available)
        parts = explain(miss, lang)
        said = [say("miss_memory", lang, what=what, needed=needed, machine=machine, has=has, parts=parts)]
    levers = list(_levers(refused, attempt))
    plan = smallest_plan(miss, attempt, plans)
    if plan is not None:
        said.append(say("smallest_plan", lang, plan=plan.id))
        levers.append(f"--plan {plan.id}")
    # Where less of the same model fits, another model is not what is wanted.
    model = None if len(levers) > (plan is not None) else largest_model(miss, capacity, attempt, models)
    if model is not None:
        said.append(say("largest_model", lang, model=model.name))
        levers.append(f"--model {model.name}")
    hint = f", {label('or', lang)} ".join(levers)
    return TooLarge("; ".join(said), miss=miss, hint=hint or say("hint_smaller", lang))


def machine_words(capacity: Capacity, lang: Lang) -> str:
    """Name the machine in a sentence."""
    return say("machine_plan", lang, plan=capacity.plan) if capacity.plan else say("machine_this", lang)


def _levers(refused: Refused, attempt: Attempt) -> Iterator[str]:
    """Yield the options that make it fit, each alone, with everything else as asked."""
    miss, capacity = refused.miss, refused.capacity

    def fits(
        *, variant: str | None = None, slots: int | None = None, context: int | None = None, kv: KvType | None = None
    ) -> bool:
        fit = attempt(
            miss.model,
            capacity,
            variant=variant or miss.variant,
            slots=slots or miss.slots,
            context=context or miss.context,
            kv_type=kv or miss.kv_type,
        )
        return fit is not None and (not capacity.gpus or fit.fully_on_gpu)

    if refused.slots_asked and miss.slots > 1 and fits(slots=1):
        low, high = 1, miss.slots
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(slots=middle) else (low, middle)
        yield f"--slots {low}"
    for kv in KV_BYTES:
        if KV_BYTES[kv] < KV_BYTES[miss.kv_type] and fits(kv=kv):
            yield f"--kv-type {kv}"
            break
    contexts = [size for size in (65536, 32768, 16384, 8192, 4096, 2048, 1024) if size < miss.context]
    shorter = next((size for size in contexts if fits(context=size)), None)
    if shorter is not None:
        yield f"--context {shorter}"
    if refused.variant_asked:
        smaller = [name for name in miss.model.variants if quality(name) > quality(miss.variant)]
        better = next((name for name in sorted(smaller, key=quality) if fits(variant=name)), None)
        if better is not None:
            yield f"--variant {better}"


def smallest_plan(miss: Fit, attempt: Attempt, plans: Iterable[Plan]) -> Plan | None:
    """Return the cheapest plan on which the model fits as asked; without prices, the one of least memory.

    A plan with a GPU counts only if the whole model fits on its GPUs.
    """

    def cost(plan: Plan) -> tuple[float, float]:
        price = monthly(plan) if plan.price else float("inf")
        return price, plan.ram_gb + sum(gpu.vram_gb * gpu.count for gpu in plan.gpus)

    for plan in sorted(plans, key=cost):
        fit = attempt(
            miss.model,
            Capacity.of_plan(plan),
            variant=miss.variant,
            slots=miss.slots,
            context=miss.context,
            kv_type=miss.kv_type,
        )
        if fit is not None and (not plan.gpus or fit.fully_on_gpu):
            return plan
    return None


def largest_model(miss: Fit, capacity: Capacity, attempt: Attempt, models: Iterable[ModelEntry]) -> ModelEntry | None:
    """Return the largest model that fits, of the same family where there is one."""
    smaller = [entry for entry in models if entry.parameters < miss.model.parameters]
    kin = [entry for entry in smaller if entry.family == miss.model.family]
    for group in (kin, smaller):
        for entry in sorted(group, key=lambda entry: -entry.parameters):
            fit = attempt(entry, capacity)
            if fit is not None and (not capacity.gpus or fit.fully_on_gpu):
                return entry
    return None
