"""Chooses the variant, the slots and the context of a model on a machine; says why, or why nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from deployctl.catalog.models import LOWEST_UNASKED, ModelEntry, quality
from deployctl.catalog.plans import Plan
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import ModelUnavailable, UsageError
from deployctl.sizing import memory
from deployctl.sizing.fit import Capacity, Fit, KvType
from deployctl.sizing.pick import Question, best_fit, smallest_miss
from deployctl.sizing.refuse import Refused, refusal
from deployctl.sizing.words import Lang, say

CONTEXT_QUANTILE = 0.99
CONTEXT_MARGIN = 64
"""Tokens beside prompt and answer: the chat template, a unique prefix, the tokenizer's own marks."""
MIN_CONTEXT = 1024


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
    last_logits: bool = False,
    slo: SloEntry | None = None,
    tokens_per_s: float | None = None,
    plan: Plan | None = None,
    plans: Iterable[Plan] = (),
    models: Iterable[ModelEntry] = (),
    lang: Lang = "en",
) -> Fit:
    """Return the best quality that fits with the asked, or the needed, slots and context (tokens per slot).

    With ``plan`` the variant must also be predicted to meet ``slo`` with all slots busy, at the slow end of the
    prediction where it can, and to give one stream ``tokens_per_s`` (default: what the plan promises for the model);
    slots stop where more would not help. All of it follows from what is sold, nothing from a measurement: a plan has
    the same settings on every host and every night. Nothing below q4 is chosen unless ``variant`` asks for it.
    ``prompt_cache`` is in bytes. ``last_logits`` describes the engine (`memory.compute_bytes`): set it for the embedded
    one. ``plans`` and ``models`` are what the refusal may offer instead. Raises DoesNotFit with the bytes of each part,
    ModelUnavailable for a variant that the model does not have, and UsageError for numbers that make no sense.
    """
    candidates = _candidates(model, variant)
    chosen_context, context_reason = _context(model, workload, context, lang)
    if kv_type not in memory.KV_BYTES:
        raise UsageError(f"unknown KV cache type {kv_type} (known: {', '.join(memory.KV_BYTES)})")
    if slots is not None and slots < 1:
        raise UsageError(f"a deployment needs at least one slot, not {slots}")
    question = Question(
        model,
        capacity,
        chosen_context,
        kv_type,
        prompt_cache,
        last_logits,
        held=min(chosen_context, workload.prompt_tokens.expected() + workload.output_tokens.expected() / 2),
        prompt=workload.prompt_tokens.quantile(slo.attainment) if slo else workload.prompt_tokens.expected(),
        slo=slo,
        tokens_per_s=tokens_per_s or _promised(model, plan),
        plan=plan,
        slots_asked=slots is not None,
        lang=lang,
    )
    fit = best_fit(question, candidates, slots)
    if fit is None:
        miss = smallest_miss(question, candidates, slots or 1)
        refused = Refused(miss, capacity, variant_asked=variant is not None, slots_asked=slots is not None, lang=lang)
        attempt = partial(_attempt, workload, last_logits=last_logits)
        raise refusal(refused, attempt, plans=plans, models=models)
    return replace(fit, reasons=(*fit.reasons, context_reason))


def _attempt(
    workload: Workload,
    model: ModelEntry,
    capacity: Capacity,
    *,
    variant: str | None = None,
    slots: int | None = None,
    context: int | None = None,
    kv_type: KvType | None = None,
    last_logits: bool = False,
) -> Fit | None:
    """Return the fit of another model, plan or size; None if it has none. A refusal tries many: this words none."""
    chosen, _ = _context(model, workload, context, "en")
    question = Question(
        model,
        capacity,
        chosen,
        kv_type or "f16",
        0,
        last_logits,
        held=0,
        prompt=0,
        slo=None,
        tokens_per_s=None,
        plan=None,
        slots_asked=slots is not None,
        lang="en",
    )
    return best_fit(question, _candidates(model, variant), slots)


def _promised(model: ModelEntry, plan: Plan | None) -> float | None:
    """Return the tokens per second that the plan promises for the model, under any of its names."""
    if plan is None:
        return None
    return next((said.tokens_per_s for name, said in plan.promises.items() if name.lower() in model.names), None)


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


def _context(model: ModelEntry, workload: Workload, asked: int | None, lang: Lang) -> tuple[int, str]:
    if asked is not None:
        if asked < 1:
            raise UsageError(f"a context needs at least one token, not {asked}")
        if asked > model.context:
            raise UsageError(
                f"{model.name} was trained for {model.context} tokens of context; {asked} were asked for",
                hint=f"--context {model.context}",
            )
        return asked, say("context_asked", lang, context=asked)
    needed = workload.tokens_at(CONTEXT_QUANTILE) + CONTEXT_MARGIN
    context = next(size for size in _ladder() if size >= needed)
    key = "context" if context <= model.context else "context_capped"
    context = min(context, model.context)
    return context, say(key, lang, context=context, workload=workload.name, needed=needed, model=model.name)


def _ladder() -> Iterator[int]:
    """Yield 1024, 1536, 2048, 3072, 4096, …: powers of two and the half-way points, all multiples of 256."""
    size = MIN_CONTEXT
    while True:
        yield size
        yield size + size // 2
        size *= 2
