"""Picks among the variants of a model, with as many slots as memory and the predicted speed allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deployctl.catalog.models import ModelEntry, quality
from deployctl.catalog.plans import Plan
from deployctl.catalog.slos import SloEntry
from deployctl.sizing import memory
from deployctl.sizing.fit import Capacity, Fit, KvType
from deployctl.sizing.refuse import machine_words
from deployctl.sizing.speed import Speed, predict
from deployctl.sizing.words import Lang, say
from deployctl.units import format_bytes

CPU_STEPS = (1, 2, 3, 4, 6, 8)
GPU_STEPS = (1, 2, 4, 8, 16, 24, 32)
CPU_FLOOR, GPU_FLOOR = 2, 4
"""Slots that a better variant must leave room for before it is preferred."""


@dataclass(frozen=True)
class Question:
    """What was asked, together: everything but the variant and the number of slots."""

    model: ModelEntry
    capacity: Capacity
    context: int
    kv_type: KvType
    prompt_cache: int
    last_logits: bool
    held: float  # mean tokens in a busy slot
    prompt: float  # tokens of the longest prompt that still has to start in time: the SLO's quantile
    slo: SloEntry | None
    tokens_per_s: float | None  # what one stream must get
    plan: Plan | None
    slots_asked: bool
    lang: Lang


def fit_at(question: Question, variant: str, slots: int) -> Fit:
    """Return the fit of one variant with ``slots`` slots: on the GPUs where all of it goes there, else split."""
    model, capacity = question.model, question.capacity
    context, kv_type, cache, last = question.context, question.kv_type, question.prompt_cache, question.last_logits
    gpu_layers = 0
    if not capacity.gpus:
        parts = memory.cpu_parts(
            model,
            variant,
            capacity,
            context=context,
            slots=slots,
            kv_type=kv_type,
            prompt_cache=cache,
            last_logits=last,
        )
        fits = parts.total <= parts.available
    else:
        parts = memory.gpu_parts(
            model, variant, capacity, context=context, slots=slots, kv_type=kv_type, last_logits=last
        )
        beside = memory.host_bytes_beside_gpu(model, variant, capacity, cache)
        fits = parts.total <= parts.available and beside <= capacity.ram_bytes
        gpu_layers = model.layers + 1
        if not fits:
            parts, gpu_layers = memory.split_parts(
                model,
                variant,
                capacity,
                context=context,
                slots=slots,
                kv_type=kv_type,
                prompt_cache=cache,
                last_logits=last,
            )
            fits = parts.total <= parts.available
    return Fit(
        model=model,
        variant=variant,
        reference=model.reference(variant),
        bytes=parts,
        slots=slots,
        context=context,
        kv_type=kv_type,
        gpu_layers=gpu_layers,
        fits=fits and memory.disk_suffices(model, variant, capacity),
    )


def best_fit(question: Question, candidates: Sequence[str], slots: int | None) -> Fit | None:
    """Return the first of ``candidates`` (best first) that fits and is predicted to be quick enough; None if none fits.

    Asked are, in turn: quick enough even if the prediction is too good by its whole band, then as predicted; and each
    time with a few slots before a single one.
    """
    floor = slots or (GPU_FLOOR if question.capacity.gpus else CPU_FLOOR)
    floor = min(floor, question.model.forced_slots or floor)
    for careful in (True, False):
        fits = _fitting(question, candidates, slots, careful=careful)
        if not fits:
            return None
        for enough in dict.fromkeys((floor, 1)):
            for fit in fits:
                if fit.slots >= enough and _meets(question, fit, careful=careful):
                    return replace(fit, reasons=_why(question, fit, candidates, met=True))
    # Nothing is predicted to meet the SLO: the fastest is the least bad, and the SLO's failure is the advice.
    usual = next((fit for fit in fits if fit.variant == question.model.default), None)
    fastest = min(fits, key=lambda fit: (fit.bytes.weights, quality(fit.variant)))
    fit = usual if usual is not None and usual.bytes.weights <= 1.15 * fastest.bytes.weights else fastest
    return replace(fit, reasons=_why(question, fit, candidates, met=False))


def smallest_miss(question: Question, candidates: Sequence[str], slots: int) -> Fit:
    """Return the fit of the smallest candidate, for saying what is missing."""
    smallest = min(candidates, key=lambda name: question.model.variants[name].bytes)
    return fit_at(question, smallest, slots)


def _fitting(question: Question, candidates: Sequence[str], slots: int | None, *, careful: bool) -> list[Fit]:
    found = [_most_slots(question, name, slots, careful=careful) for name in candidates]
    fits = [fit for fit in found if fit is not None]
    return [fit for fit in fits if fit.fully_on_gpu] or fits


def _most_slots(question: Question, variant: str, slots: int | None, *, careful: bool) -> Fit | None:
    """Return the fit with the asked slots, or with as many as memory and prediction allow; None when none fits."""
    slots = question.model.forced_slots or slots
    if slots is not None:
        fit = fit_at(question, variant, slots)
        return fit if fit.fits else None
    best: Fit | None = None
    best_rate = 0.0
    most = None if careful else (GPU_FLOOR if question.capacity.gpus else CPU_FLOOR)
    whole = fit_at(question, variant, 1).fully_on_gpu
    for count in _steps(question.capacity):
        if most is not None and count > most:
            break  # too slow at the slow end of the prediction: no place for a crowd
        fit = fit_at(question, variant, count)
        if not fit.fits or (whole and not fit.fully_on_gpu):
            break
        if question.plan is not None:
            speed = _speed(question, fit, question.plan)
            rate = count * speed.decode_full_tok_s
            # Doubling the slots must give at least a tenth more tokens per second, or waiting is as good as sharing.
            helps = best is None or rate >= best_rate * (1 + 0.1 * (count / best.slots - 1))
            if not helps or (best is not None and not _quick_enough(question, speed, careful=careful)):
                break
            best_rate = rate
        best = fit
    return best


def _steps(capacity: Capacity) -> tuple[int, ...]:
    if capacity.gpus:
        return GPU_STEPS
    return tuple(step for step in CPU_STEPS if step <= (4 if capacity.cpus <= 16 else 8))


def _meets(question: Question, fit: Fit, *, careful: bool) -> bool:
    if question.plan is None:
        return True
    speed = _speed(question, fit, question.plan)
    promised = speed.decode_tok_s >= (question.tokens_per_s or 0)
    return promised and _quick_enough(question, speed, careful=careful)


def _speed(question: Question, fit: Fit, plan: Plan) -> Speed:
    return predict(fit, plan, question.held)


def _quick_enough(question: Question, speed: Speed, *, careful: bool) -> bool:
    slo = question.slo
    if slo is None:
        return True
    slower = speed.band if careful else 1.0
    start = question.prompt / speed.prefill_tok_s * slower
    return (slo.ttft_s is None or start <= slo.ttft_s) and (
        slo.tpot_s is None or speed.tpot_full_s * slower <= slo.tpot_s
    )


def _why(question: Question, fit: Fit, candidates: Sequence[str], *, met: bool) -> tuple[str, ...]:
    lang, machine = question.lang, machine_words(question.capacity, question.lang)
    wanted = [say("judged_slo", lang, slo=question.slo.name)] if question.slo and question.plan else []
    if question.tokens_per_s and question.plan:
        wanted.append(say("judged_promise", lang, rate=question.tokens_per_s))
    judged = say("and", lang, first=wanted[0], second=wanted[1]) if len(wanted) > 1 else "".join(wanted)
    if len(candidates) == 1:
        key = "variant_only"
    elif not met:
        key = "variant_slow"
    else:
        key = "variant_quick" if judged else "variant_best"
    reasons = [say(key, lang, variant=fit.variant, machine=machine, judged=judged)]
    if question.model.forced_slots is not None:
        reasons.append(say("slots_forced", lang, family=question.model.family))
    else:
        kv = format_bytes(fit.bytes.kv)
        key = "slots_one" if fit.slots == 1 else "slots"
        sentence = say(key, lang, slots=fit.slots, context=fit.context, kv=kv)
        if question.plan is not None and not question.slots_asked:
            more = fit_at(question, fit.variant, fit.slots + 1)
            fits = more.fits and more.fully_on_gpu == fit.fully_on_gpu
            most = fit.slots >= _steps(question.capacity)[-1]
            sentence += "; " + say("slots_memory" if not fits else "slots_most" if most else "slots_speed", lang)
        reasons.append(sentence)
    if question.capacity.gpus and not fit.fully_on_gpu:
        reasons.append(say("split", lang, on_gpu=fit.gpu_layers, layers=fit.model.layers + 1))
    return tuple(reasons)
