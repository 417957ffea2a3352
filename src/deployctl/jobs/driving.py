"""From a served model to a load generator that is ready: Locust, the way to the server, one user alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployctl.catalog.workloads import Workload
from deployctl.errors import HostUnreachable
from deployctl.events import Emit, step
from deployctl.jobs.wanted import Generator
from deployctl.jobs.watch import ServerWatch, Watch
from deployctl.jobs.way import Way, measure_way
from deployctl.load.baseline import Baseline, baseline
from deployctl.load.demand import calibration
from deployctl.load.driver import LocustDriver
from deployctl.load.prober import Calibration, Gates
from deployctl.load.remote import LoadMachine
from deployctl.load.wire import Machine
from deployctl.resources import Project
from deployctl.units import format_seconds


@dataclass(frozen=True)
class Serving:
    """A served model as the load generator finds it. ``watch``: where the host can be watched; ``load_s``: its load."""

    url: str
    reference: str
    slots: int | None = None
    watch: Watch | None = None
    load_s: float = 0.0


@dataclass(frozen=True)
class Driving:
    """A load generator that is ready, what one user alone felt, and what makes a probe void."""

    driver: LocustDriver
    alone: Baseline
    calibration: Calibration
    gates: Gates
    way: Way | None


@dataclass(frozen=True)
class Generated:
    """How the load was generated: processes, other machines with their clocks, and the way to the server."""

    processes: int = 1
    master: bool = False
    machines: tuple[Machine, ...] = ()
    way: Way | None = None
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, driving: Driving) -> Generated:
        """What there is to say once all load was generated."""
        driver = driving.driver
        return cls(driver.generators, driver.has_master, driver.machines, driving.way, tuple(driver.notes))

    def words(self) -> str:
        """Where the load came from."""
        if not self.master:
            return "one process"
        where = f" on {', '.join(machine.name for machine in self.machines)}" if self.machines else ""
        return f"{self.processes} worker{'s' if self.processes != 1 else ''}{where}"

    def conditions(self) -> dict[str, Any]:
        """The same for a record's conditions; times in milliseconds."""
        found: dict[str, Any] = {}
        if self.way is not None:
            found["way_to_server_ms"] = round(self.way.through_s * 1e3, 3)
            if self.way.added_s is not None:
                found["tunnel_adds_ms"] = round(self.way.added_s * 1e3, 3)
        for machine in self.machines:
            found[f"load_generator_{machine.name}"] = {
                "clock_offset_ms": round(machine.clock_s * 1e3, 3),
                "clock_error_ms": round(machine.clock_error_s * 1e3, 3),
                "way_to_server_ms": round(machine.way_s * 1e3, 3),
            }
        return found


@contextmanager
def driving(
    workload: Workload,
    serving: Serving,
    generator: Generator,
    *,
    machines: tuple[LoadMachine, ...] = (),
    log: Path | None = None,
    speed: float = 1.0,
    out_dir: Path,
    project: Project,
    seed: int,
    emit: Emit,
) -> Iterator[Driving]:
    """Start the load generator and measure one user alone; everything ends with the block.

    Raises HostUnreachable when the host is lost on the way, MeasurementError when nothing can be measured.
    """
    server = ServerWatch(serving.url, serving.reference) if generator.protocol == "ollama" else None
    watch = serving.watch

    def gates(began_s: float, ended_s: float) -> tuple[str, ...]:
        host = watch(began_s, ended_s) if watch else ()
        return (*host, *(server(began_s, ended_s) if server else ()))

    driver = LocustDriver(
        serving.url,
        serving.reference,
        workload,
        seed=seed,
        out_dir=out_dir,
        project=project,
        protocol=generator.protocol,
        workers=generator.workers,
        machines=machines,
        log=log,
        speed=speed,
    )
    with ExitStack() as stack:
        with step(emit, "generator", "Starting the load generator") as current:
            stack.enter_context(driver)
            current.detail = f"{described(driver, machines)}, workload {workload.name}"
        with step(emit, "baseline", "One user alone") as current:
            way = _way(serving, generator.protocol)
            alone = baseline(driver)
            rate = f", {alone.decode_tokens_per_s:.1f} tokens/s for one user" if alone.decode_tokens_per_s else ""
            current.detail = f"first token {format_seconds(alone.ttft_s)}{rate}"
        yield Driving(driver, alone, calibration(workload, alone), gates, way)


def described(driver: LocustDriver, machines: tuple[LoadMachine, ...]) -> str:
    """Where the load comes from, in words."""
    if machines:
        return f"Locust, {driver.generators} workers on {', '.join(machine.name for machine in machines)}"
    return f"Locust, {driver.generators} workers" if driver.has_master else "Locust in a process of its own"


def _way(serving: Serving, protocol: str) -> Way | None:
    watch = serving.watch
    try:
        if watch is None:
            return measure_way(serving.url, protocol)
        return measure_way(serving.url, protocol, watch.session, watch.tunnel.remote_port)
    except HostUnreachable:
        return None  # the baseline says what is wrong, if anything is
