"""From a served model to a capacity: the load generator, a one-user baseline, the search under the host's gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deployctl.capacity.hold import holds
from deployctl.capacity.probe import Prober
from deployctl.capacity.result import Prior, Result, Status
from deployctl.capacity.search import search
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import MeasurementError
from deployctl.events import Emit, step
from deployctl.jobs.driving import Generated, Serving, driving
from deployctl.jobs.order import Question
from deployctl.jobs.wanted import Generator
from deployctl.jobs.watch import ServerWatch
from deployctl.load.baseline import Baseline
from deployctl.load.clientside import ClientLimits
from deployctl.load.demand import demand_of
from deployctl.load.prober import LoadProber
from deployctl.load.remote import LoadMachine
from deployctl.resources import Project

Through = Callable[[Prober, Mapping[str, Any]], Prober]
"""Puts something between a search and its prober, told under which conditions the probes are held."""


@dataclass(frozen=True)
class Keeping:
    """How a job that may be killed at any time is followed: told the run's id, and asked to keep its probes."""

    began: Callable[[str], None]
    through: Through


@dataclass(frozen=True)
class Measured:
    """What the load generator and the search brought home."""

    baseline: Baseline
    result: Result
    load_s: float
    samples: tuple[Path, ...]
    generated: Generated = field(default_factory=Generated)


def measure(
    question: Question,
    serving: Serving,
    *,
    generator: Generator,
    machines: tuple[LoadMachine, ...] = (),
    out_dir: Path,
    project: Project,
    seed: int,
    max_users: int | None,
    emit: Emit,
    hold: int | None = None,
    through: Through | None = None,
) -> Measured:
    """Run the baseline and the search against a served model, under the gates of its host where it can be watched.

    ``hold`` asks only whether that many users are held, instead of how many. ``through`` may put a journal between the
    search and its probes. Raises HostUnreachable when the host is lost on the way, MeasurementError when nothing can be
    measured.
    """
    with driving(
        question.workload,
        serving,
        generator,
        machines=machines,
        out_dir=out_dir,
        project=project,
        seed=seed,
        emit=emit,
    ) as ready:
        alone = ready.alone
        title = "Searching for the capacity" if hold is None else f"Does it hold {hold} users?"
        with step(emit, "search", title) as current:
            prober: Prober = LoadProber(
                ready.driver,
                gates=ready.gates,
                limits=client_limits(question.slo),
                calibration=ready.calibration,
            )
            prior = Prior(
                users_guess=guess_users(alone, serving.slots, question.workload),
                slots=serving.slots,
                demand=demand_of(question.workload, alone),
            )
            if through is not None:
                prober = through(prober, conditions_of(question, serving, seed))
            if hold is not None:
                result = ask_whether(prober, question, hold, prior, emit)
            else:
                result = search(
                    prober,
                    question.slo.to_slo(),
                    prior,
                    question.budget,
                    emit=emit,
                    **({"max_users": max_users} if max_users else {}),
                )
            count = len(result.probes)
            current.detail = f"{count} probe{'s' if count != 1 else ''}, {result.status.replace('_', ' ')}"
        generated = Generated.of(ready)
    return Measured(alone, result, serving.load_s, tuple(ready.driver.sample_files), generated)


def conditions_of(question: Question, serving: Serving, seed: int) -> dict[str, Any]:
    """What two probes must have in common to be evidence of one search: the server's model and all that was asked."""
    return {
        "reference": serving.reference,
        **ServerWatch(serving.url, serving.reference).identity(),
        "slots": serving.slots,
        "workload": question.workload.model_dump(mode="json"),
        "slo": question.slo.model_dump(mode="json"),
        "seed": seed,
    }


def ask_whether(prober: Prober, question: Question, users: int, prior: Prior, emit: Emit) -> Result:
    """Ask yes or no at ``users``, and answer as a search that never tried any other number."""
    seconds = question.budget.seconds
    held = holds(prober, question.slo.to_slo(), users, prior, emit=emit, **({"budget_s": seconds} if seconds else {}))
    failed = held.verdict == "fail"
    status: Status = "inconclusive"
    if held.verdict == "pass":
        status = "at_least"
    elif failed and users == 1:
        status = "not_met"
    elif held.verdict == "invalid":
        status = "invalid"
    return Result(
        status=status,
        certified_users=users if held.verdict == "pass" else 0,
        at_most_users=users - 1 if failed else None,
        confidence=held.confidence,
        limited_by=held.limited_by,
        probes=held.probes,
        seconds_by_activity=held.seconds_by_activity,
        notes=held.notes,
    )


def client_limits(slo: SloEntry) -> ClientLimits:
    """How late the load generator itself may be: a tenth of the threshold that its lateness counts against.

    Lateness only ever adds to a latency, so it can make a host look slower, never faster; the load that a late client
    fails to offer is caught by the residual of Little's law.
    """
    strictest = min(limit for limit in (slo.ttft_s, slo.e2e_s, math.inf) if limit is not None)
    usual = ClientLimits()
    late = usual.loop_lag_p99_s if math.isinf(strictest) else max(usual.loop_lag_p99_s, strictest / 10)
    return replace(usual, loop_lag_p99_s=late, schedule_delay_p99_s=late)


def guess_users(alone: Baseline, slots: int | None, workload: Workload) -> int:
    """Where the search starts: enough users to keep every slot busy at the speed that one user saw.

    A user asks for the server e2e seconds out of every e2e + think seconds, so slots · (e2e + think) / e2e users keep
    the slots busy if parallel decoding were free.
    """
    if not 0 < alone.e2e_s < float("inf"):
        raise MeasurementError("the baseline measured no finished request", hint="deployctl test --url … -v")
    return max(1, round((slots or 1) * (alone.e2e_s + workload.think_s.expected()) / alone.e2e_s))
