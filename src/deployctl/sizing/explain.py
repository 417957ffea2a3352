"""The details behind an advice: what each part of the memory is, and how every variant would do on the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deployctl.catalog.models import ModelEntry, quality
from deployctl.catalog.plans import Plan
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.sizing.advise import Prediction, predict_fit
from deployctl.sizing.calibration import Calibration
from deployctl.sizing.choose import choose
from deployctl.sizing.fit import Capacity, Fit
from deployctl.sizing.memory import UBATCH, input_table_bytes
from deployctl.sizing.refuse import TooLarge
from deployctl.sizing.words import Lang, say
from deployctl.units import format_bytes


@dataclass(frozen=True)
class VariantLine:
    """One variant on the plan: slots, bytes in all, and its prediction (None: it does not fit)."""

    variant: str
    slots: int
    total: int
    predicted: Prediction | None


def part_detail(fit: Fit, part: str, plan: Plan, lang: Lang) -> str:
    """Say what a part of the memory is made of."""
    gpu = bool(plan.gpus) and fit.gpu_layers > 0
    if part == "weights":
        parameters = f"{fit.model.parameters / 1e9:.3g}B" if fit.model.parameters >= 1e9 else _millions(fit.model)
        table = input_table_bytes(fit.model, fit.variant) if fit.fully_on_gpu else 0
        key = "part_weights_gpu" if table else "part_weights"
        return say(key, lang, variant=fit.variant, parameters=parameters, host=format_bytes(table))
    if part == "kv":
        each = format_bytes(fit.bytes.kv / fit.slots)
        return say("part_kv", lang, slots=fit.slots, context=fit.context, kv_type=fit.kv_type, each=each)
    if part == "compute":
        return say("part_compute", lang, ubatch=UBATCH)
    if part == "runtime":
        return say("part_runtime_gpu" if gpu else "part_runtime_cpu", lang)
    if part == "os_reserve":
        return say("part_reserve_gpu" if gpu else "part_reserve_cpu", lang)
    return ""


def variant_lines(
    plan: Plan, model: ModelEntry, workload: Workload, slo: SloEntry, calibration: Calibration | None
) -> Iterator[VariantLine]:
    """Yield every variant, best quality first."""
    for variant in sorted(model.variants, key=quality):
        try:
            fit = choose(
                model,
                Capacity.of_plan(plan),
                workload,
                variant=variant,
                slo=slo,
                plan=plan,
            )
        except TooLarge as refused:
            yield VariantLine(variant, refused.miss.slots, refused.miss.bytes.total, None)
        else:
            yield VariantLine(variant, fit.slots, fit.bytes.total, predict_fit(plan, fit, workload, slo, calibration))


def _millions(model: ModelEntry) -> str:
    return f"{model.parameters / 1e6:.0f}M"
