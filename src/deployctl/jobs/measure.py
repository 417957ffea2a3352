"""From a served model to a capacity: the load generator, a one-user baseline, the search under the host's gates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from deployctl.capacity.result import Prior, Result
from deployctl.capacity.search import search
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import MeasurementError
from deployctl.events import Emit, step
from deployctl.jobs.driving import Generated, Serving, driving
from deployctl.jobs.order import Question
from deployctl.jobs.wanted import Generator
from deployctl.load.baseline import Baseline
from deployctl.load.clientside import ClientLimits
from deployctl.load.demand import demand_of
from deployctl.load.prober import LoadProber
from deployctl.load.remote import LoadMachine
from deployctl.resources import Project


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
) -> Measured:
    """Run the baseline and the search against a served model, under the gates of its host where it can be watched.

    Raises HostUnreachable when the host is lost on the way, MeasurementError when nothing can be measured.
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
        with step(emit, "search", "Searching for the capacity") as current:
            prober = LoadProber(
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
