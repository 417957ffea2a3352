"""The capacity engineer's answer: what fits, how fast, for how many users, at what cost, and on a CPU or a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import HOURS_PER_MONTH, Plan, monthly
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.sizing.calibration import Calibration
from deployctl.sizing.choose import choose
from deployctl.sizing.fit import Capacity, Fit, KvType
from deployctl.sizing.queueing import Load, Service, load, most_users
from deployctl.sizing.refuse import TooLarge
from deployctl.sizing.speed import Speed, bytes_per_token, predict, step_seconds
from deployctl.sizing.words import Lang, say
from deployctl.units import format_bytes

Verdict = Literal["good", "too few users", "slow or impossible", "does not fit"]

QUEUE_ERROR = 0.1
"""How far the queue itself may be off, beside the speeds: against long runs of the simulator (tests/sizing)."""
ANSWER_TOKENS = 200
"""The answer that the reference page of the plans counts in."""
LARGE_READ = 20 * 1024**3
"""Bytes read per token from which it is the model's size that makes a CPU slow: 0.25 s at 80 GB/s."""


@dataclass(frozen=True)
class Prediction:
    """Predicted speed (tokens per second, of one stream) and users, with the users at either end of the band.

    ``decode_full_tok_s`` is what each stream gets while every slot is busy; ``band`` the factor that the speeds may be
    off by. Nothing here is certified: that takes a measurement.
    """

    prefill_tok_s: float
    decode_tok_s: float
    decode_full_tok_s: float
    band: float
    users: int
    low: int
    high: int
    seconds_for_200_tokens: float

    def to_dict(self) -> dict[str, Any]:
        """Return the block of the JSON document."""
        return {
            "prefill_tok_s": round(self.prefill_tok_s, 2),
            "decode_tok_s": round(self.decode_tok_s, 2),
            "decode_full_tok_s": round(self.decode_full_tok_s, 2),
            "band": round(self.band, 2),
            "users": self.users,
            "low": self.low,
            "high": self.high,
            "seconds_for_200_tokens": round(self.seconds_for_200_tokens, 2),
        }


@dataclass(frozen=True)
class Cost:
    """Price of the plan per month, and per user and per million output tokens at the predicted number of users."""

    currency: str
    per_month: float
    per_user: float | None
    per_million_tokens: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the block of the JSON document."""
        return {
            "currency": self.currency,
            "per_month": round(self.per_month, 2),
            "per_user": None if self.per_user is None else round(self.per_user, 2),
            "per_million_tokens": None if self.per_million_tokens is None else round(self.per_million_tokens, 2),
        }


@dataclass(frozen=True)
class Advice:
    """The answer for one plan and one model. Without a fit, ``miss`` is the smallest thing that was tried."""

    plan: Plan
    model: ModelEntry
    verdict: Verdict
    hardware: Literal["cpu", "gpu"]
    slo: str
    fit: Fit | None
    predicted: Prediction | None
    cost: Cost | None
    reasons: tuple[str, ...]
    sources: tuple[str, ...]
    hint: str = ""
    miss: Fit | None = None
    calibration: Calibration | None = None
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document of ``deployctl advise --json``: bytes, and the same keys whatever the answer."""
        shown = self.fit or self.miss
        assert shown is not None  # there is always one or the other
        nothing = dict.fromkeys(Prediction(0, 0, 0, 1, 0, 0, 0, 0).to_dict()) | {"users": 0, "low": 0, "high": 0}
        return {
            "plan": self.plan.id,
            "model": self.model.name,
            "reference": shown.reference,
            "variant": shown.variant,
            "quantization": shown.variant.upper(),
            "bytes": shown.bytes.to_dict(),
            "fits": self.fit is not None,
            "slots": shown.slots,
            "context": shown.context,
            "gpu_layers": shown.gpu_layers,
            "predicted": nothing if self.predicted is None else self.predicted.to_dict(),
            "verdict": self.verdict,
            "hardware": self.hardware,
            "slo": self.slo,
            "reasons": list(self.reasons),
            "hint": self.hint,
            "cost": dict.fromkeys(Cost("", 0, 0, 0).to_dict()) if self.cost is None else self.cost.to_dict(),
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
            "sources": list(self.sources),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Asked:
    """What the advice is for, beside the plan."""

    model: ModelEntry
    workload: Workload
    slo: SloEntry
    users: int | None
    lang: Lang


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
    fewer predicted makes the verdict "too few users". ``calibration`` corrects the speeds by measured records. Of
    ``plans`` a better one is named where there is one. Raises ModelUnavailable and UsageError as `choose` does.
    """
    plans, models = list(plans), list(models)
    sources = _sources(plan, model, lang)
    try:
        fit = choose(
            model, capacity or Capacity.of_plan(plan), workload,
            variant=variant, slots=slots, context=context, kv_type=kv_type, prompt_cache=prompt_cache,
            last_logits=last_logits, slo=slo, plan=plan, plans=plans, models=models, lang=lang,
        )  # fmt: skip
    except TooLarge as refused:
        return Advice(
            plan, model, "does not fit", "gpu" if plan.gpus else "cpu", slo.name, None, None,
            _cost(plan, None, None, workload), (refused.message,), (*sources, _size_source(refused.miss, lang)),
            refused.hint, refused.miss, calibration,
        )  # fmt: skip
    speed, service = _service(plan, fit, workload, calibration)
    predicted = _predict(service, speed, workload, slo)
    at = load(service, workload, slo, predicted.users) if predicted.users else None
    verdict = _verdict(predicted, users)
    asked = _Asked(model, workload, slo, users, lang)
    reasons, hardware, better = _hardware(plan, fit, predicted, asked, plans)
    if calibration is not None:
        count = calibration.records
        runs = say("runs_one", lang) if count == 1 else say("runs", lang, count=count)
        reasons += (say("calibrated", lang, runs=runs, what=calibration.what, factor=calibration.factor),)
    return Advice(
        plan=plan,
        model=model,
        verdict=verdict,
        hardware=hardware,
        slo=slo.name,
        fit=fit,
        predicted=predicted,
        cost=_cost(plan, predicted, at, workload),
        reasons=(*fit.reasons, *reasons),
        sources=(*sources, _size_source(fit, lang)),
        hint=better,
        calibration=calibration,
    )


def cheapest(
    plans: Iterable[Plan],
    model: ModelEntry,
    workload: Workload,
    slo: SloEntry,
    users: int,
    *,
    calibrations: Mapping[str, Calibration] | None = None,
    lang: Lang = "en",
    **asked: Any,
) -> Advice | None:
    """Return the advice for the cheapest plan that is predicted to hold ``users`` users; None if no plan does.

    Prices are compared within one currency, that of the first priced plan; plans without a price come last.
    ``calibrations`` are by plan id; ``asked`` is passed on to `advise` (a variant, slots, a context).
    """
    known = list(plans)
    for plan in _by_price(known):
        calibration = (calibrations or {}).get(plan.id)
        predicted = _quick_look(plan, model, workload, slo, calibration=calibration, **asked)
        if predicted is not None and predicted.users >= users:
            return advise(
                plan, model, workload, slo, users=users, calibration=calibration, plans=known, lang=lang, **asked
            )
    return None


def _by_price(plans: Sequence[Plan]) -> list[Plan]:
    currency = next((plan.price.currency for plan in plans if plan.price), "")
    comparable = [plan for plan in plans if plan.price is None or plan.price.currency == currency]
    return sorted(comparable, key=lambda plan: monthly(plan) if plan.price else math.inf)


def _quick_look(
    plan: Plan,
    model: ModelEntry,
    workload: Workload,
    slo: SloEntry,
    *,
    calibration: Calibration | None = None,
    **asked: Any,
) -> Prediction | None:
    """Return the prediction alone; None where nothing fits."""
    try:
        fit = choose(model, Capacity.of_plan(plan), workload, slo=slo, plan=plan, **asked)
    except TooLarge:
        return None
    if plan.gpus and not fit.fully_on_gpu:
        return None  # whoever pays for a GPU wants the whole model on it
    return predict_fit(plan, fit, workload, slo, calibration)


def predict_fit(
    plan: Plan, fit: Fit, workload: Workload, slo: SloEntry, calibration: Calibration | None = None
) -> Prediction:
    """Return the predicted speeds and users of a fit on a plan."""
    speed, service = _service(plan, fit, workload, calibration)
    return _predict(service, speed, workload, slo)


def _service(plan: Plan, fit: Fit, workload: Workload, calibration: Calibration | None) -> tuple[Speed, Service]:
    held = min(fit.context, workload.prompt_tokens.expected() + workload.output_tokens.expected() / 2)
    speed = predict(fit, plan, held)
    factor = 1.0
    if calibration is not None:
        speed, factor = calibration.apply(speed), calibration.factor
    steps = [step_seconds(fit, plan, held, busy) / factor for busy in range(1, fit.slots + 1)]
    return speed, Service(fit.slots, speed.prefill_tok_s, lambda busy: steps[busy - 1])


def _predict(service: Service, speed: Speed, workload: Workload, slo: SloEntry) -> Prediction:
    users = most_users(service, workload, slo)
    slow = most_users(service.slowed(speed.band, sharing=1.0), workload, slo)
    low, alone = slow * (1 - QUEUE_ERROR), min(slow, 1)  # one user never queues
    high = most_users(service.slowed(1 / speed.band), workload, slo) * (1 + QUEUE_ERROR)
    return Prediction(
        prefill_tok_s=speed.prefill_tok_s,
        decode_tok_s=speed.decode_tok_s,
        decode_full_tok_s=speed.decode_full_tok_s,
        band=speed.band,
        users=users,
        low=min(users, max(alone, math.floor(low))),
        high=max(users, math.ceil(high)),
        seconds_for_200_tokens=ANSWER_TOKENS / speed.decode_tok_s,
    )


def _verdict(predicted: Prediction, users: int | None) -> Verdict:
    if predicted.users == 0:
        return "slow or impossible"
    return "too few users" if users is not None and predicted.users < users else "good"


def _cost(plan: Plan, predicted: Prediction | None, at: Load | None, workload: Workload) -> Cost | None:
    if plan.price is None:
        return None
    month = monthly(plan)
    if predicted is None or not predicted.users or at is None:
        return Cost(plan.price.currency, month, None, None)
    tokens = at.requests_per_s * workload.output_tokens.expected() * HOURS_PER_MONTH * 3600
    return Cost(plan.price.currency, month, month / predicted.users, month / tokens * 1e6)


def _hardware(
    plan: Plan, fit: Fit, predicted: Prediction, asked: _Asked, plans: Sequence[Plan]
) -> tuple[tuple[str, ...], Literal["cpu", "gpu"], str]:
    """Return why it wants a CPU or a GPU (volume, real time, size, images), which, and the option that helps."""
    lang, wanted = asked.lang, asked.users or 1
    seconds, high = predicted.seconds_for_200_tokens, predicted.high
    said: list[str] = []
    hardware: Literal["cpu", "gpu"] = "gpu"
    hint = ""
    if predicted.users < wanted:
        better = _cheapest_for(plans, asked, wanted)
        on_cpu = better is not None and not better[0].gpus
        said.append(_falls_short(plan, fit, predicted, asked, on_cpu=on_cpu))
        if better is not None:
            other, holds = better
            said.append(say("better_plan", lang, plan=other.id, price=price_words(other, lang), predicted=holds))
            hint, hardware = f"--plan {other.id}", "gpu" if other.gpus else "cpu"
        elif plans:
            key = "no_plan" if wanted > 1 else "no_plan_one"
            said.append(say(key, lang, users=wanted, model=asked.model.name, slo=asked.slo.name))
    elif plan.gpus:
        said.append(say("gpu_good", lang, users=predicted.users, seconds=_short(seconds)))
        enough = _cpu_instead(plan, asked, plans)
        if enough is not None:
            other, holds = enough
            key = "cpu_would_do" if asked.users else "cpu_for_fewer"
            figures = {"plan": other.id, "price": price_words(other, lang), "predicted": holds}
            said.append(say(key, lang, users=wanted, **figures))
            hardware = "cpu" if asked.users else "gpu"
    else:
        hardware = "cpu"
        # What the SLO's pace, or else reading speed, leaves room for at this plan's bandwidth.
        pace = asked.slo.tpot_s or 0.2
        most = bytes_per_token(fit) * pace * predicted.decode_tok_s
        said.append(say("cpu_enough", lang, high=high, seconds=_short(seconds), read=format_bytes(most)))
    if predicted.low < wanted <= predicted.users and asked.users is not None:
        said.append(say("measure_first", lang, low=predicted.low, users=wanted))
    if not plan.gpus and fit.model.projector_bytes:
        said.append(say("images", lang, model=fit.model.name))
    return tuple(said), hardware, hint


def _falls_short(plan: Plan, fit: Fit, predicted: Prediction, asked: _Asked, *, on_cpu: bool) -> str:
    lang, seconds = asked.lang, predicted.seconds_for_200_tokens
    if predicted.users:
        figures = {"users": asked.users or 1, "predicted": predicted.users, "high": predicted.high}
        return say("more" if plan.gpus or on_cpu else "volume", lang, **figures)
    read = bytes_per_token(fit)
    if not plan.gpus and read >= LARGE_READ:
        return say("slow_cpu", lang, seconds=seconds, read=format_bytes(read))
    if not plan.gpus:
        return say("slow_small", lang, seconds=seconds, slo=asked.slo.name)
    if not fit.fully_on_gpu:
        return say("slow_gpu", lang, seconds=seconds)
    return say("slow_slo", lang, seconds=_short(seconds), slo=asked.slo.name)


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _cheapest_for(plans: Sequence[Plan], asked: _Asked, users: int) -> tuple[Plan, int] | None:
    for plan in _by_price(plans):
        found = _quick_look(plan, asked.model, asked.workload, asked.slo) if plan.price else None
        if found is not None and found.users >= users:
            return plan, found.users
    return None


def _cpu_instead(plan: Plan, asked: _Asked, plans: Sequence[Plan]) -> tuple[Plan, int] | None:
    """Return the CPU plan that costs less and holds the wanted users (or the most of them), with its users."""
    if plan.price is None:
        return None
    best: tuple[Plan, int] | None = None
    for other in _by_price([known for known in plans if known.price and not known.gpus]):
        if other.price is None or other.price.currency != plan.price.currency or monthly(other) >= monthly(plan):
            continue
        found = _quick_look(other, asked.model, asked.workload, asked.slo)
        if found is None or not found.users:
            continue
        if asked.users is not None and found.users >= asked.users:
            return other, found.users
        if asked.users is None and (best is None or found.users > best[1]):
            best = other, found.users
    return best


def price_words(plan: Plan, lang: Lang) -> str:
    """Return the plan's price per month in words."""
    currency = plan.price.currency if plan.price else ""
    return say("row_cost", lang, month=f"{monthly(plan):,.0f}", currency=currency)


def _sources(plan: Plan, model: ModelEntry, lang: Lang) -> tuple[str, ...]:
    return (
        say("source_plan", lang, plan=plan.id),
        say("source_model", lang, model=model.name, source=model.source),
        say("source_memory", lang),
        say("source_speed", lang),
    )


def _size_source(fit: Fit, lang: Lang) -> str:
    variant = fit.model.variants[fit.variant]
    if variant.estimated:
        return say("source_estimate", lang, variant=fit.variant)
    return say("source_size", lang, variant=fit.variant, source=variant.source)
