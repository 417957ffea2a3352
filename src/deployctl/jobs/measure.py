"""From a served model to a capacity: the load generator, a one-user baseline, the search under the host's gates."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from deployctl.capacity.result import Prior, Result
from deployctl.capacity.search import search
from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload
from deployctl.errors import MeasurementError
from deployctl.events import Emit, step
from deployctl.jobs.order import Question
from deployctl.jobs.watch import ServerWatch, Watch
from deployctl.load.baseline import Baseline, baseline
from deployctl.load.clientside import ClientLimits
from deployctl.load.demand import demand_of, prompt_ratio
from deployctl.load.driver import LocustDriver
from deployctl.load.prober import LoadProber
from deployctl.resources import Project
from deployctl.units import format_seconds


@dataclass(frozen=True)
class Measured:
    """What the load generator and the search brought home."""

    baseline: Baseline
    result: Result
    load_s: float
    samples: tuple[Path, ...]


def measure(
    question: Question,
    *,
    url: str,
    reference: str,
    slots: int | None,
    watch: Watch | None,
    out_dir: Path,
    project: Project,
    seed: int,
    max_users: int | None,
    load_s: float,
    emit: Emit,
) -> Measured:
    """Run the baseline and the search against ``url``, under the gates of ``watch`` where the host can be watched.

    Raises HostUnreachable when the host is lost on the way, MeasurementError when nothing can be measured.
    """
    server = ServerWatch(url, reference)

    def gates(began_s: float, ended_s: float) -> tuple[str, ...]:
        host = watch(began_s, ended_s) if watch else ()
        return (*host, *server(began_s, ended_s))

    with ExitStack() as stack:
        with step(emit, "generator", "Starting the load generator") as current:
            driver = stack.enter_context(
                LocustDriver(url, reference, question.workload, seed=seed, out_dir=out_dir, project=project)
            )
            current.detail = f"Locust in a process of its own, workload {question.workload.name}"
        with step(emit, "baseline", "One user alone") as current:
            alone = baseline(driver)
            current.detail = (
                f"first token {format_seconds(alone.ttft_s)}, {alone.decode_tokens_per_s:.1f} tokens/s for one user"
            )
        with step(emit, "search", "Searching for the capacity") as current:
            prober = LoadProber(
                driver,
                gates=gates,
                limits=client_limits(question.slo),
                prompt_ratio=prompt_ratio(question.workload, alone),
            )
            prior = Prior(
                users_guess=guess_users(alone, slots, question.workload),
                slots=slots,
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
    return Measured(alone, result, load_s, tuple(driver.sample_files))


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
