"""The capacity engineer's answer: what fits, how fast, for how many users, at what cost, and on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Plan
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.sizing.calibration import Calibration
from deployctl.sizing.choose import choose
from deployctl.sizing.fit import Capacity, Fit, KvType
from deployctl.sizing.queueing import Load, Service, load, most_users
from deployctl.sizing.refuse import TooLarge
from deployctl.sizing.speed import Speed, predict, step_seconds
from deployctl.sizing.words import Lang, say

Verdict = Literal["good", "too few users", "slow or impossible", "does not fit"]

HOURS_PER_MONTH = 730.0
ANSWER_TOKENS = 200
"""The answer that the reference page of the plans counts in."""


@dataclass(frozen=True)
class Prediction:
    """Predicted speed (tokens per second, of one stream) and users, with the users at either end of the band."""

    prefill_tok_s: float
    decode_tok_s: float
    users: int
    low: int
    high: int
    seconds_for_200_tokens: float


@dataclass(frozen=True)
class Cost:
    """Price of the plan per month, and per user and per million output tokens at the predicted number of users."""

    currency: str
    per_month: float
    per_user: float | None
    per_million_tokens: float | None


@dataclass(frozen=True)
class Advice:
    """The answer for one plan and one model; ``fit`` and ``predicted`` are None where nothing fits."""

    plan: Plan
    model: ModelEntry
    verdict: Verdict
    hardware: Literal["cpu", "gpu"]
    fit: Fit | None
    predicted: Prediction | None
    cost: Cost | None
    reasons: tuple[str, ...]
    sources: tuple[str, ...]
    hint: str = ""
    sizes: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``deployctl advise --json``; sizes in bytes."""
        fit, predicted, cost = self.fit, self.predicted, self.cost
        variant = fit.variant if fit else None
        return {
            "plan": self.plan.id,
            "model": self.model.name,
            "reference": fit.reference if fit else None,
            "variant": variant,
            "quantization": variant.upper() if variant else None,
            "bytes": fit.bytes.to_dict() if fit else self.sizes,
            "fits": fit is not None,
            "slots": fit.slots if fit else 0,
            "context": fit.context if fit else 0,
            "gpu_layers": fit.gpu_layers if fit else 0,
            "predicted": None
            if predicted is None
            else {
                "prefill_tok_s": round(predicted.prefill_tok_s, 2),
                "decode_tok_s": round(predicted.decode_tok_s, 2),
                "users": predicted.users,
                "low": predicted.low,
                "high": predicted.high,
                "seconds_for_200_tokens": round(predicted.seconds_for_200_tokens, 2),
            },
            "verdict": self.verdict,
            "hardware": self.hardware,
            "reasons": list(self.reasons),
            "cost": None
            if cost is None
            else {
                "currency": cost.currency,
                "per_month": round(cost.per_month, 2),
                "per_user": None if cost.per_user is None else round(cost.per_user, 2),
                "per_million_tokens": None if cost.per_million_tokens is None else round(cost.per_million_tokens, 2),
            },
            "sources": list(self.sources),
            "hint": self.hint,
        }


def advise(
    plan: Plan,
    model: ModelEntry,
    workload: Workload,
    slo: SloEntry,
    *,
    capacity: Capacity | None = None,
    variant: str | None = None,
    context: int | None = None,
    slots: int | None = None,
    kv_type: KvType = "f16",
    prompt_cache: int = 0,
    last_logits: bool = False,
    users: int | None = None,
    calibration: Calibration | None = None,
    plans: Iterable[Plan] = (),
    models: Iterable[ModelEntry] = (),
    lang: Lang = "en",
) -> Advice:
    """Answer for ``model`` on ``plan`` under ``slo``; never raises DoesNotFit: that is a verdict here.

    ``capacity`` is what a probe of a host found (default: the plan's own figures). ``users`` is how many are wanted:
    fewer predicted makes the verdict "too few users". ``calibration`` corrects the speeds by measured records. Raises
    ModelUnavailable and UsageError as `choose` does.
    """
    machine = capacity or Capacity.of_plan(plan)
    sources = _sources(plan, model)
    try:
        fit = choose(
            model, machine, workload,
            variant=variant, slots=slots, context=context, kv_type=kv_type, prompt_cache=prompt_cache,
            last_logits=last_logits, slo=slo, plan=plan, plans=plans, models=models, lang=lang,
        )  # fmt: skip
    except TooLarge as refused:
        return Advice(
            plan, model, "does not fit", _hardware(plan), None, None, _cost(plan, None, None, workload),
            (refused.message,), sources, refused.hint, refused.miss.bytes.to_dict(),
        )  # fmt: skip
    held = _held(fit, workload)
    speed = predict(fit, plan, held)
    factor = 1.0
    if calibration is not None:
        speed, factor = calibration.apply(speed), calibration.factor
        sources += (f"calibration: × {factor:.2f} from {calibration.records} measured records of this host class",)
    service = Service(fit.slots, speed.prefill_tok_s, lambda busy: step_seconds(fit, plan, held, busy) / factor)
    predicted = _predict(service, speed, workload, slo)
    at = load(service, workload, slo, predicted.users) if predicted.users else None
    verdict = _verdict(predicted, users)
    return Advice(
        plan=plan,
        model=model,
        verdict=verdict,
        hardware=_wanted_hardware(plan, predicted, users),
        fit=fit,
        predicted=predicted,
        cost=_cost(plan, predicted, at, workload),
        reasons=(*fit.reasons, *_reasons(plan, fit, speed, predicted, slo, users, lang)),
        sources=(*sources, f"{fit.variant}: {model.variants[fit.variant].source}"),
    )


def cheapest(
    plans: Iterable[Plan],
    model: ModelEntry,
    workload: Workload,
    slo: SloEntry,
    users: int,
    *,
    lang: Lang = "en",
) -> Advice | None:
    """Return the advice for the cheapest plan that is predicted to hold ``users`` users; None if no plan does.

    Prices are compared within one currency, that of the first priced plan; plans without a price come last.
    """
    known = list(plans)
    currency = next((plan.price.currency for plan in known if plan.price), "")
    comparable = [plan for plan in known if plan.price is None or plan.price.currency == currency]
    for plan in sorted(comparable, key=lambda plan: monthly(plan) if plan.price else float("inf")):
        advice = advise(plan, model, workload, slo, users=users, lang=lang)
        if advice.predicted is not None and advice.predicted.users >= users:
            return advice
    return None


def monthly(plan: Plan) -> float:
    """Return the plan's price per month in its currency; 0 without a price."""
    if plan.price is None:
        return 0.0
    return plan.price.amount * (HOURS_PER_MONTH if plan.price.per == "hour" else 1.0)


def _held(fit: Fit, workload: Workload) -> float:
    return min(fit.context, workload.prompt_tokens.expected() + workload.output_tokens.expected() / 2)


def _predict(service: Service, speed: Speed, workload: Workload, slo: SloEntry) -> Prediction:
    return Prediction(
        prefill_tok_s=speed.prefill_tok_s,
        decode_tok_s=speed.decode_tok_s,
        users=most_users(service, workload, slo),
        low=most_users(service.slowed(speed.band), workload, slo),
        high=most_users(service.slowed(1 / speed.band), workload, slo),
        seconds_for_200_tokens=ANSWER_TOKENS / speed.decode_tok_s,
    )


def _verdict(predicted: Prediction, users: int | None) -> Verdict:
    if predicted.users == 0:
        return "slow or impossible"
    return "too few users" if users is not None and predicted.users < users else "good"


def _hardware(plan: Plan) -> Literal["cpu", "gpu"]:
    return "gpu" if plan.gpus else "cpu"


def _wanted_hardware(plan: Plan, predicted: Prediction, users: int | None) -> Literal["cpu", "gpu"]:
    """Return what the job wants: a GPU where a CPU does not hold the wanted users, or one at all."""
    return "gpu" if plan.gpus or predicted.users < (users or 1) else "cpu"


def _cost(plan: Plan, predicted: Prediction | None, at: Load | None, workload: Workload) -> Cost | None:
    if plan.price is None:
        return None
    month = monthly(plan)
    if predicted is None or not predicted.users or at is None:
        return Cost(plan.price.currency, month, None, None)
    tokens = at.requests_per_s * workload.output_tokens.expected() * HOURS_PER_MONTH * 3600
    return Cost(plan.price.currency, month, month / predicted.users, month / tokens * 1e6)


def _reasons(
    plan: Plan, fit: Fit, speed: Speed, predicted: Prediction, slo: SloEntry, users: int | None, lang: Lang
) -> tuple[str, ...]:
    seconds = predicted.seconds_for_200_tokens
    said = [
        say("speed", lang, decode=speed.decode_tok_s, band=speed.band, seconds=seconds, full=speed.decode_full_tok_s),
        say("users", lang, users=predicted.users, low=predicted.low, high=predicted.high, slo=slo.name),
    ]
    on_cpu = not plan.gpus
    if predicted.users == 0:
        said.append(say("slow_cpu" if on_cpu else "slow_gpu", lang, seconds=seconds, model=fit.model.name))
    elif on_cpu and (users or 0) > predicted.high:
        said.append(say("volume", lang, users=users or 0, high=predicted.high))
    elif on_cpu:
        said.append(say("cpu_enough", lang, users=predicted.users))
    else:
        said.append(say("gpu_good", lang, users=predicted.users))
    if on_cpu and fit.model.projector_bytes:
        said.append(say("images", lang, model=fit.model.name))
    return tuple(said)


def _sources(plan: Plan, model: ModelEntry) -> tuple[str, ...]:
    memory = "memory: llama.cpp's allocations (deployctl.sizing.memory)"
    speed = "speed: memory bandwidth and published speeds (deployctl.sizing.speed)"
    return f"plan {plan.id}: inventory/plans.yml", f"{model.name}: {model.source}", memory, speed
