"""Chooses the variant, the slots and the context of a model on a machine; says why, or why nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from deployctl.catalog.models import LOWEST_UNASKED, ModelEntry, quality
from deployctl.catalog.plans import Plan
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import DoesNotFit, ModelUnavailable, UsageError
from deployctl.sizing import memory
from deployctl.sizing.fit import Capacity, Fit, KvType
from deployctl.sizing.refuse import refusal
from deployctl.sizing.speed import Speed, predict

CONTEXT_QUANTILE = 0.99
CONTEXT_MARGIN = 64
"""Tokens beside prompt and answer: the chat template, a unique prefix, the tokenizer's own marks."""
MIN_CONTEXT = 1024

CPU_STEPS = (1, 2, 3, 4, 6, 8)
GPU_STEPS = (1, 2, 4, 8, 16, 24, 32)
CPU_FLOOR, GPU_FLOOR = 2, 4
"""Slots that a better variant must leave room for before it is preferred."""


@dataclass(frozen=True)
class _Question:
    """What was asked, together: everything but the variant and the number of slots."""

    model: ModelEntry
    capacity: Capacity
    context: int
    kv_type: KvType
    prompt_cache: int
    held: float  # mean tokens in a busy slot
    prompt: float  # mean tokens of a prompt
    slo: SloEntry | None
    plan: Plan | None


def choose(
    model: ModelEntry,
    capacity: Capacity,
    workload: Workload,
    *,
    variant: str | None = None,
    slots: int | None = None,
    context: int | None = None,
    kv_type: KvType = "f16",
    prompt_cache: int = 0,
    slo: SloEntry | None = None,
    plan: Plan | None = None,
    plans: Iterable[Plan] = (),
    models: Iterable[ModelEntry] = (),
) -> Fit:
    """Return the best quality that fits with the asked, or the needed, slots and context (tokens per slot).

    With ``slo`` and ``plan`` the variant must also be predicted to meet the SLO, and slots stop where the prediction
    says so. Nothing below q4 is chosen unless ``variant`` asks for it. ``prompt_cache`` is in bytes. ``plans`` and
    ``models`` are what the refusal may offer instead. Raises DoesNotFit with the bytes of each part, ModelUnavailable
    for a variant that the model does not have, and UsageError for numbers that make no sense.
    """
    candidates = _candidates(model, variant)
    chosen_context, context_reason = _context(model, workload, context)
    if kv_type not in memory.KV_BYTES:
        raise UsageError(f"unknown KV cache type {kv_type} (known: {', '.join(memory.KV_BYTES)})")
    if slots is not None and slots < 1:
        raise UsageError(f"a deployment needs at least one slot, not {slots}")
    question = _Question(
        model,
        capacity,
        chosen_context,
        kv_type,
        prompt_cache,
        held=min(chosen_context, workload.prompt_tokens.expected() + workload.output_tokens.expected() / 2),
        prompt=workload.prompt_tokens.expected(),
        slo=slo,
        plan=plan,
    )
    fit = _best(question, candidates, slots)
    if fit is None:
        miss = _smallest_miss(question, candidates, slots or 1)
        raise refusal(miss, capacity, partial(_attempt, workload), plans=plans, models=models)
    return replace(fit, reasons=(*fit.reasons, context_reason))


def _attempt(workload: Workload, model: ModelEntry, capacity: Capacity, like: Fit | None) -> Fit | None:
    """Return the fit of another model or plan, with the variant, slots and context of ``like``; None if it has none."""
    try:
        if like is None:
            return choose(model, capacity, workload)
        return choose(
            model,
            capacity,
            workload,
            variant=like.variant,
            slots=like.slots,
            context=like.context,
            kv_type=like.kv_type,
        )
    except DoesNotFit:
        return None


def fit_at(question: _Question, variant: str, slots: int) -> Fit:
    """Return the fit of one variant with ``slots`` slots: on the GPUs where all of it goes there, else split."""
    model, capacity = question.model, question.capacity
    context, kv_type, cache = question.context, question.kv_type, question.prompt_cache
    gpu_layers = 0
    if not capacity.gpus:
        parts = memory.cpu_parts(
            model, variant, capacity, context=context, slots=slots, kv_type=kv_type, prompt_cache=cache
        )
        fits = parts.total <= parts.available
    else:
        parts = memory.gpu_parts(model, variant, capacity, context=context, slots=slots, kv_type=kv_type)
        beside = memory.host_bytes_beside_gpu(capacity, cache)
        fits = parts.total <= parts.available and beside <= capacity.ram_bytes
        gpu_layers = model.layers + 1
        if not fits:
            parts, gpu_layers = memory.split_parts(
                model, variant, capacity, context=context, slots=slots, kv_type=kv_type, prompt_cache=cache
            )
            fits = parts.total <= parts.available
    return Fit(
        model=model,
        variant=variant,
        reference=model.reference(variant),
        bytes=parts,
        slots=slots,
        context=question.context,
        kv_type=question.kv_type,
        gpu_layers=gpu_layers,
        fits=fits
        and (capacity.disk_bytes is None or memory.disk_bytes(model, variant, capacity) <= capacity.disk_bytes),
    )


def _candidates(model: ModelEntry, variant: str | None) -> list[str]:
    if variant is not None:
        known = {name.lower(): name for name in model.variants}
        if variant.lower() not in known:
            raise ModelUnavailable(
                f"{model.name} has no variant {variant}; it has {', '.join(model.variants)}",
                hint=f"deployctl models {model.name}",
            )
        return [known[variant.lower()]]
    offered = [name for name, entry in model.variants.items() if entry.origin == "registry"] or list(model.variants)
    good = [name for name in offered if quality(name) <= quality(LOWEST_UNASKED)] or offered
    return sorted(good, key=quality)


def _context(model: ModelEntry, workload: Workload, asked: int | None) -> tuple[int, str]:
    if asked is not None:
        if asked < 1:
            raise UsageError(f"a context needs at least one token, not {asked}")
        if asked > model.context:
            raise UsageError(
                f"{model.name} was trained for {model.context} tokens of context; {asked} were asked for",
                hint=f"--context {model.context}",
            )
        return asked, f"context {asked} tokens per slot, as asked"
    needed = workload.tokens_at(CONTEXT_QUANTILE) + CONTEXT_MARGIN
    context = next(size for size in _ladder() if size >= needed)
    said = f"99 % of the {workload.name} workload's requests need at most {needed} tokens with the template"
    if context > model.context:
        return model.context, f"context {model.context}, the most that {model.name} was trained for; {said}"
    return context, f"context {context} tokens per slot: {said}"


def _ladder() -> Iterator[int]:
    """Yield 1024, 1536, 2048, 3072, 4096, …: powers of two and the half-way points, all multiples of 256."""
    size = MIN_CONTEXT
    while True:
        yield size
        yield size + size // 2
        size *= 2


def _best(question: _Question, candidates: Sequence[str], slots: int | None) -> Fit | None:
    fits = [fit for fit in (_most_slots(question, name, slots) for name in candidates) if fit is not None]
    on_gpu = [fit for fit in fits if fit.fully_on_gpu]
    fits = on_gpu or fits
    if not fits:
        return None
    floor = slots or (GPU_FLOOR if question.capacity.gpus else CPU_FLOOR)
    floor = min(floor, question.model.forced_slots or floor)
    for enough in dict.fromkeys((floor, 1)):
        for fit in fits:
            if fit.slots >= enough and _meets(question, fit):
                return replace(fit, reasons=_why(question, fit, candidates, met=True))
    # Nothing is predicted to meet the SLO: the fastest is the least bad, and the SLO's failure is the advice.
    usual = next((fit for fit in fits if fit.variant == question.model.default), None)
    fastest = min(fits, key=lambda fit: (fit.bytes.weights, quality(fit.variant)))
    fit = usual if usual is not None and usual.bytes.weights <= 1.15 * fastest.bytes.weights else fastest
    return replace(fit, reasons=_why(question, fit, candidates, met=False))


def _most_slots(question: _Question, variant: str, slots: int | None) -> Fit | None:
    """Return the fit with the asked slots, or with as many as memory and prediction allow; None when none fits."""
    if question.model.forced_slots is not None:
        slots = question.model.forced_slots
    if slots is not None:
        fit = fit_at(question, variant, slots)
        return fit if fit.fits else None
    best: Fit | None = None
    best_rate = 0.0
    gpu_whole = fit_at(question, variant, 1).fully_on_gpu
    for count in _steps(question.capacity):
        fit = fit_at(question, variant, count)
        if not fit.fits or (gpu_whole and not fit.fully_on_gpu):
            break
        if question.plan is not None:
            speed = predict(fit, question.plan, question.held)
            rate = count * speed.decode_full_tok_s
            # Doubling the slots must give at least a tenth more tokens per second, or waiting is as good as sharing.
            if best is not None and rate < best_rate * (1 + 0.1 * (count / best.slots - 1)):
                break
            if best is not None and not _quick_enough(question, speed):
                break
            best_rate = rate
        best = fit
    return best


def _steps(capacity: Capacity) -> tuple[int, ...]:
    if capacity.gpus:
        return GPU_STEPS
    return tuple(step for step in CPU_STEPS if step <= (4 if capacity.cpus <= 16 else 8))


def _meets(question: _Question, fit: Fit) -> bool:
    if question.plan is None or question.slo is None:
        return True
    return _quick_enough(question, predict(fit, question.plan, question.held))


def _quick_enough(question: _Question, speed: Speed) -> bool:
    slo = question.slo
    if slo is None:
        return True
    quick_start = slo.ttft_s is None or question.prompt / speed.prefill_tok_s <= slo.ttft_s
    return quick_start and (slo.tpot_s is None or speed.tpot_full_s <= slo.tpot_s)


def _why(question: _Question, fit: Fit, candidates: Sequence[str], *, met: bool) -> tuple[str, ...]:
    reasons: list[str] = []
    name = question.capacity.name
    if len(candidates) == 1:
        reasons.append(f"variant {fit.variant}: the only one to choose from")
    elif met:
        judged = f" and is predicted to meet the SLO {question.slo.name}" if question.slo and question.plan else ""
        reasons.append(f"variant {fit.variant}: the best quality that fits {name}{judged}")
    else:
        assert question.slo is not None
        reasons.append(f"variant {fit.variant}: no variant is predicted to meet the SLO {question.slo.name} on {name}")
    if question.model.forced_slots is not None:
        reasons.append(f"{fit.slots} slot: Ollama gives the family {question.model.family} no more")
    else:
        reasons.append(f"{fit.slots} slots of {fit.context} tokens: {fit.bytes.kv / memory.MIB:.0f} MiB of KV cache")
    if question.capacity.gpus and not fit.fully_on_gpu:
        reasons.append(
            f"only {fit.gpu_layers} of {fit.model.layers + 1} layers fit on the GPU; the rest runs on the CPU"
        )
    return tuple(reasons)


def _smallest_miss(question: _Question, candidates: Sequence[str], slots: int) -> Fit:
    smallest = min(candidates, key=lambda name: question.model.variants[name].bytes)
    return fit_at(question, smallest, slots)
