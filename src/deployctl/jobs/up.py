"""The main job: a plan and a model go in, a certified number of concurrent users comes out."""

from __future__ import annotations

from contextlib import ExitStack

from deployctl.catalog.load import load_catalog
from deployctl.errors import Cancelled, DeployctlError, UsageError
from deployctl.events import Emit, step
from deployctl.jobs.deploy import deploy, size_plan
from deployctl.jobs.driving import Serving
from deployctl.jobs.facts import informed
from deployctl.jobs.machines import names_of, ready_machines
from deployctl.jobs.measure import Keeping, measure
from deployctl.jobs.overrides import announce
from deployctl.jobs.reach import reach
from deployctl.jobs.recording import (
    Stopwatch,
    embedded_note,
    host_block,
    make_record,
    served_blocks,
    shared_cores_note,
    telemetry_block,
)
from deployctl.jobs.reporting import Outcome, keep
from deployctl.jobs.wanted import Place, Wanted
from deployctl.jobs.watch import watching
from deployctl.records.store import RunStore
from deployctl.resources import Project


def up(wanted: Wanted, *, project: Project, place: Place, emit: Emit, keeping: Keeping | None = None) -> Outcome:
    """Provision, serve, measure, record.

    Raises DeployctlError of the kind that the README lists by exit code; Cancelled keeps the samples.
    """
    watch = Stopwatch(emit)
    announce(project, watch)
    catalog = load_catalog(project)
    order = informed(wanted, catalog, project, place, watch)
    if order.question.workload.log:
        raise UsageError(
            f"workload {order.question.workload.name} is a log of requests, and `up` looks for a number of users",
            hint=f"deployctl test --workload {order.question.workload.name}, once it is served",
        )
    size_plan(wanted, order)
    store = RunStore(place.data_dir)
    run = store.new_run()
    if keeping is not None:
        keeping.began(run.id)
    try:
        with ExitStack() as stack:
            reached = stack.enter_context(reach(wanted, catalog, place, watch))
            log = run.dir / "provision.log"
            served = stack.enter_context(deploy(wanted, order, reached, project, place, log, watch, run=run.id))
            machines = ready_machines(
                names_of(wanted.generator.hosts, catalog), wanted, catalog, place, project, log, watch
            )
            enforce = not reached.sandbox
            host_watch = stack.enter_context(watching(reached.session, served.tunnel, enforce=enforce))
            measured = measure(
                order.question,
                Serving(served.url, served.model.reference, served.slots, host_watch, served.loaded.load_s),
                generator=wanted.generator,
                machines=machines,
                out_dir=run.dir,
                project=project,
                seed=wanted.seed,
                max_users=wanted.max_users,
                emit=watch,
                through=keeping.through if keeping else None,
            )
            notes = (*served.notes, *served.loaded.notes)
            if served.source.engine == "embedded":
                notes += (embedded_note(),)
            if reached.sandbox:
                notes += (shared_cores_note(), *host_watch.noted)
            blocks = {
                "host": host_block(reached),
                "telemetry": telemetry_block(host_watch),
                **served_blocks(order, reached, served),
            }
    except DeployctlError:
        store.abandon(run.id)
        raise
    except KeyboardInterrupt:
        store.abandon(run.id)
        raise Cancelled(f"cancelled; what was measured so far is kept in {run.dir}", hint="deployctl runs") from None
    with step(watch, "record", "Writing record and report") as current:
        record = make_record(
            run.id, watch, order.question, measured, blocks, plan=order.plan, seed=wanted.seed, notes=notes
        )
        problem = keep(store, record, project, watch)
        current.detail = problem or run.id
    return Outcome(record, run, problem)
