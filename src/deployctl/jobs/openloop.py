"""The open loop: does a rate of arrivals, or a log of them, keep the SLO; and which is the largest rate that does."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from deployctl import __version__
from deployctl.capacity.attainment import FACTORS, met, misses
from deployctl.capacity.probe import Look, ProbeRun
from deployctl.capacity.result import Prior, ProbeSummary
from deployctl.capacity.search import MODE_SECONDS, search
from deployctl.capacity.trial import Trial
from deployctl.errors import MeasurementError, NegativeAnswer
from deployctl.events import Emit, Event, ProbeEnded, ProbeMoved, StepProgress, Warned, step
from deployctl.jobs.driving import Driving, Generated
from deployctl.jobs.measure import client_limits
from deployctl.jobs.order import Question
from deployctl.load.arrivals import Process
from deployctl.load.baseline import Baseline
from deployctl.load.prober import LoadProber
from deployctl.load.store import read_samples
from deployctl.records.files import write_atomic
from deployctl.stats.quantiles import percentiles

Status = Literal["pass", "fail", "inconclusive", "invalid"]
ANSWER = "answer.json"
EXIT_BY_STATUS = {"pass": 0, "fail": NegativeAnswer.exit_code}

_CONFIDENCE = 0.95
_TRIES = 2  # a void probe is repeated once
_STEPS = 20  # levels of a search up to the rate that would keep every slot busy


@dataclass(frozen=True)
class Arrivals:
    """What is asked: ``rate_per_s`` (None: the largest that holds) by ``process``, or a ``log`` played at ``speed``."""

    rate_per_s: float | None = None
    process: Process = "poisson"
    log: Path | None = None
    speed: float = 1.0


@dataclass(frozen=True)
class RateProbe:
    """One rate, held until it was decided (or a log, played once). Latencies in seconds; shares of 1."""

    rate_per_s: float
    verdict: Status
    requests: int
    discarded: int
    effective_n: float | None
    attainment: float
    attainment_low: float | None
    attainment_high: float | None
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    e2e_s: dict[str, float]
    tokens_per_s: float
    broken_by: dict[str, int]
    invalid_reasons: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Answer:
    """The answer of an open loop. ``certified_rate_per_s``: the largest proven rate, None where none was proven;
    ``at_most_rate_per_s``: more was shown not to hold. ``confidence``: None for a log, whose answer is a count.
    """

    status: Status
    probes: tuple[RateProbe, ...]
    certified_rate_per_s: float | None = None
    at_most_rate_per_s: float | None = None
    confidence: float | None = _CONFIDENCE
    notes: tuple[str, ...] = field(default=())


def ask(arrivals: Arrivals, question: Question, ready: Driving, slots: int | None, emit: Emit) -> Answer:
    """Answer an open-loop question with a load generator that is ready."""
    if arrivals.log is not None:
        return _play(arrivals, question, ready, emit)
    if arrivals.rate_per_s is None:
        return _largest(arrivals, question, ready, slots, emit)
    return _hold(arrivals.rate_per_s, arrivals, question, ready, emit)


def _prober(ready: Driving, question: Question, **options: Any) -> LoadProber:
    limits = client_limits(question.slo)
    return LoadProber(ready.driver, gates=ready.gates, limits=limits, calibration=ready.calibration, **options)


def _hold(rate: float, arrivals: Arrivals, question: Question, ready: Driving, emit: Emit) -> Answer:
    """One rate: the sequential test that the search for users makes of a level.

    By Little's law rate · e2e requests are open at once, as with so many users who never think; that number sets the
    scale on which outcomes depend on each other, and the warm-up.
    """
    at_once = max(1, round(rate * ready.alone.e2e_s))
    prober = _prober(ready, question, arrivals_per_s=rate / at_once, process=arrivals.process)
    budget = question.budget.seconds or MODE_SECONDS[question.budget.mode]
    probes: list[RateProbe] = []
    notes: list[str] = []
    with step(emit, "rate", f"Holding {rate:g} requests/s") as current:
        for _ in range(_TRIES):
            trial = Trial(
                at_once,
                question.slo.to_slo(),
                alpha_pass=1 - _CONFIDENCE,
                alpha_fail=1 - _CONFIDENCE,
                emit=_in_rates(emit, "rate", rate / at_once),
            )
            run = prober(at_once, trial.go_on, budget)
            summary, _ = trial.close(run)
            probes.append(rate_probe(summary, rate))
            notes += run.notes
            if summary.verdict != "invalid":
                break
            emit(Warned(f"the probe is void and repeated once: {'; '.join(summary.invalid_reasons)}"))
        current.detail = f"{rate:g} requests/s: {summary.verdict}"
    certified = rate if summary.verdict == "pass" else None
    return Answer(summary.verdict, tuple(probes), certified, notes=tuple(notes))


def _largest(arrivals: Arrivals, question: Question, ready: Driving, slots: int | None, emit: Emit) -> Answer:
    """The largest rate, by the search for users: a level of n is n steps of rate."""
    unit = unit_rate(ready.alone, slots)
    prober = _prober(ready, question, arrivals_per_s=unit, process=arrivals.process)
    with step(emit, "search", "Searching for the largest rate") as current:
        told = _in_rates(emit, "search", unit)
        result = search(prober, question.slo.to_slo(), Prior(users_guess=_STEPS), question.budget, emit=told)
        best = result.certified_users * unit
        current.detail = f"{best:.3g} requests/s" if best else result.status.replace("_", " ")
    by_status: dict[str, Status] = {"certified": "pass", "at_least": "pass", "not_met": "fail"}
    return Answer(
        by_status.get(result.status, "invalid" if result.status == "invalid" else "inconclusive"),
        tuple(rate_probe(probe, probe.users * unit) for probe in result.probes),
        best or None,
        None if result.at_most_users is None else result.at_most_users * unit,
        result.confidence,
        (f"levels are steps of {unit:.4g} requests/s", *result.notes),
    )


def unit_rate(alone: Baseline, slots: int | None) -> float:
    """One step of the search: a twentieth of the rate that keeps every slot busy at the speed of one user alone."""
    if not 0 < alone.e2e_s < float("inf"):
        raise MeasurementError("the baseline measured no finished request")
    return (slots or 1) / alone.e2e_s / _STEPS


def _play(arrivals: Arrivals, question: Question, ready: Driving, emit: Emit) -> Answer:
    """A log, all of it: how many of its requests met the SLO."""
    prober = _prober(ready, question, replay=True)
    lasts_s = ready.driver.logged[-1].at_s / arrivals.speed
    patience = lasts_s + question.workload.timeout_s + 60.0
    slo = question.slo.to_slo()
    with step(emit, "replay", f"Playing {len(ready.driver.logged)} requests") as current:
        for _ in range(_TRIES):
            run = prober(1, _while_valid, patience)
            if not run.invalid_reasons:
                break
            emit(Warned(f"the log's playing is void and repeated once: {'; '.join(run.invalid_reasons)}"))
        probe = played(run, slo, len(ready.driver.logged) / max(lasts_s, 1e-9))
        current.detail = f"{probe.attainment:.1%} of {probe.requests} requests met the SLO"
    return Answer(probe.verdict, (probe,), confidence=None, notes=run.notes)


def _while_valid(look: Look) -> bool:
    return not look.invalid


def played(run: ProbeRun, slo: Any, rate: float) -> RateProbe:
    """Count a log's outcomes; nothing is inferred from them."""
    requests = run.last.requests
    hits = met(requests, slo)
    share = float(hits.mean()) if len(hits) else 0.0
    verdict: Status = "pass" if share >= slo.attainment else "fail"
    seconds = max(run.last.now_s, 1e-9)
    broken = misses(requests, slo)
    return RateProbe(
        rate_per_s=rate,
        verdict="invalid" if run.invalid_reasons else verdict,
        requests=len(requests),
        discarded=0,
        effective_n=None,
        attainment=share,
        attainment_low=None,
        attainment_high=None,
        ttft_s=percentiles(requests.ttft_s),
        tpot_s=percentiles(requests.tpot_s),
        e2e_s=percentiles(requests.e2e_s),
        tokens_per_s=float(requests.output_tokens[requests.ok].sum()) / seconds,
        broken_by={name: int(broken[name].sum()) for name in FACTORS},
        invalid_reasons=run.invalid_reasons,
        seconds=run.seconds,
    )


def rate_probe(probe: ProbeSummary, rate: float) -> RateProbe:
    """A level of the search as a rate."""
    return RateProbe(
        rate, **{name: getattr(probe, name) for name in RateProbe.__dataclass_fields__ if name != "rate_per_s"}
    )


def _in_rates(emit: Emit, name: str, unit: float) -> Emit:
    """An ``Emit`` that tells of levels as rates, so many times ``unit``, under the step ``name``."""

    def tell(event: Event) -> None:
        if isinstance(event, ProbeMoved | ProbeEnded):
            verdict = f", {event.verdict}" if isinstance(event, ProbeEnded) else ""
            share = f"{event.attainment:.1%} within the SLO ({event.low:.1%} to {event.high:.1%})"
            emit(
                StepProgress(name, f"{event.users * unit:.3g} requests/s: {event.requests} requests, {share}{verdict}")
            )
        else:
            emit(event)

    return tell


def new_folder(data_dir: Path) -> Path:
    """Make the folder that keeps one answer and its samples, 0700."""
    folder = data_dir / "open-loop" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def document(
    answer: Answer, arrivals: Arrivals, question: Question, generated: Generated, samples: list[Path], **known: Any
) -> dict[str, Any]:
    """The answer as plain values for JSON: infinite latencies become null, NaN as well."""
    failures = Counter(sample.error for sample in read_samples(samples) if sample.counts and not sample.ok)
    asked: dict[str, Any] = {"process": arrivals.process, "rate_per_s": arrivals.rate_per_s or "max"}
    if arrivals.log is not None:
        asked = {"log": str(arrivals.log), "speed": arrivals.speed}
    plain = {
        "kind": "open-loop",
        "deployctl_version": __version__,
        **known,
        "workload": question.workload.model_dump(mode="json", exclude_none=True),
        "slo": {**asdict(question.slo.to_slo()), "name": question.slo.name},
        "arrivals": asked,
        **asdict(answer),
        "failures": dict(failures),
        "conditions": generated.conditions(),
        "load_generator": generated.words(),
        "samples": [path.name for path in samples],
    }
    return {key: _finite(value) for key, value in plain.items()}


def keep(folder: Path, plain: dict[str, Any]) -> Path:
    """Write the answer beside its samples; returns the file."""
    path = folder / ANSWER
    write_atomic(path, (json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
