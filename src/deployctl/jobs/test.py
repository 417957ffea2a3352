"""Measure only: a model that is already served, behind a URL or on a host that is reached by a tunnel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.load import load_catalog
from deployctl.catalog.plans import Plan
from deployctl.errors import Cancelled, DeployctlError, UsageError
from deployctl.events import Emit, step
from deployctl.hosts.tunnel import open_tunnel
from deployctl.jobs import openloop
from deployctl.jobs.driving import Generated, Serving, driving
from deployctl.jobs.loading import LoadedModel, load
from deployctl.jobs.machines import names_of, ready_machines
from deployctl.jobs.measure import Keeping, measure
from deployctl.jobs.openai import find_model
from deployctl.jobs.openloop import Arrivals
from deployctl.jobs.order import Question, ask
from deployctl.jobs.overrides import announce
from deployctl.jobs.reach import SANDBOX, Reached, reach
from deployctl.jobs.recording import Stopwatch, host_block, make_record, telemetry_block
from deployctl.jobs.reporting import Outcome, keep
from deployctl.jobs.wanted import Place, Wanted
from deployctl.jobs.watch import Watch, watching
from deployctl.ollama.client import Server
from deployctl.provision.settings import Settings
from deployctl.records.store import RunStore
from deployctl.resources import Project

OLLAMA_PORT = Settings(slots=1, context=1).port
UNWATCHED = "nothing watched the host: steal, swap and neighbours would have gone unseen"


@dataclass(frozen=True)
class _Found:
    """A served model as it was found; ``loaded`` is None where the server tells nothing of itself (OpenAI's API)."""

    serving: Serving
    loaded: LoadedModel | None
    reached: Reached | None


@dataclass(frozen=True)
class OpenAnswer:
    """The answer of an open loop: its document, the file that keeps it, the exit code's status."""

    document: dict[str, Any]
    file: Path
    status: str


def test(
    wanted: Wanted, *, url: str | None, project: Project, place: Place, emit: Emit, keeping: Keeping | None
) -> Outcome:
    """Measure the capacity of ``url``, or of the server on ``wanted.host``; nothing is installed or changed.

    Behind a bare URL there is no session to the host, so nothing watches its CPUs: the record says so.
    """
    watch = Stopwatch(emit)
    catalog, plan, question = _question(wanted, url, project, watch)
    store = RunStore(place.data_dir)
    run = store.new_run()
    if keeping is not None:
        keeping.began(run.id)
    try:
        with _served(wanted, url, catalog, place, watch) as found:
            measured = measure(
                question,
                found.serving,
                generator=wanted.generator,
                machines=ready_machines(
                    names_of(wanted.generator.hosts, catalog),
                    wanted,
                    catalog,
                    place,
                    project,
                    run.dir / "loadgen.log",
                    watch,
                ),
                out_dir=run.dir,
                project=project,
                seed=wanted.seed,
                max_users=wanted.max_users,
                emit=watch,
                through=keeping.through if keeping else None,
            )
            blocks = {
                "host": host_block(found.reached) if found.reached else None,
                "telemetry": telemetry_block(found.serving.watch),
                **_external_blocks(wanted, found.loaded),
            }
    except DeployctlError:
        store.abandon(run.id)
        raise
    except KeyboardInterrupt:
        store.abandon(run.id)
        raise Cancelled(f"cancelled; what was measured so far is kept in {run.dir}", hint="deployctl runs") from None
    notes = () if found.serving.watch else (UNWATCHED,)
    with step(watch, "record", "Writing record and report") as current:
        record = make_record(run.id, watch, question, measured, blocks, plan=plan, seed=wanted.seed, notes=notes)
        problem = keep(store, record, project, watch)
        current.detail = problem or run.id
    return Outcome(record, run, problem)


def test_arrivals(
    wanted: Wanted, arrivals: Arrivals, *, url: str | None, project: Project, place: Place, emit: Emit
) -> OpenAnswer:
    """Answer an open-loop question about a served model: a rate, the largest rate, or a log of requests.

    Where the workload is a log, that is what is played unless ``arrivals`` names another. Raises what `test` raises.
    """
    watch = Stopwatch(emit)
    catalog, _, question = _question(wanted, url, project, watch)
    arrivals = _with_log(arrivals, question, project)
    folder = openloop.new_folder(place.data_dir)
    try:
        with _served(wanted, url, catalog, place, watch) as found:
            machines = ready_machines(
                names_of(wanted.generator.hosts, catalog),
                wanted,
                catalog,
                place,
                project,
                folder / "loadgen.log",
                watch,
            )
            with driving(
                question.workload,
                found.serving,
                wanted.generator,
                machines=machines,
                log=arrivals.log,
                speed=arrivals.speed,
                out_dir=folder,
                project=project,
                seed=wanted.seed,
                emit=watch,
            ) as ready:
                answer = openloop.ask(arrivals, question, ready, found.serving.slots, watch)
                generated = Generated.of(ready)
    except KeyboardInterrupt:
        raise Cancelled(f"cancelled; what was measured so far is kept in {folder}") from None
    document = openloop.document(
        answer,
        arrivals,
        question,
        generated,
        ready.driver.sample_files,
        started_at=watch.started_at.isoformat(),
        ended_at=datetime.now(UTC).isoformat(),
        model=wanted.model,
        seed=wanted.seed,
        watched=found.serving.watch is not None,
    )
    return OpenAnswer(document, openloop.keep(folder, document), answer.status)


def is_log(wanted: Wanted, project: Project) -> bool:
    """Whether the workload is a log of requests, so that the question is an open-loop one."""
    return wanted.workload is not None and load_catalog(project).workload(wanted.workload).log is not None


def _question(
    wanted: Wanted, url: str | None, project: Project, watch: Stopwatch
) -> tuple[Catalog, Plan | None, Question]:
    announce(project, watch)
    catalog = load_catalog(project)
    plan = catalog.plan(wanted.plan) if wanted.plan else None
    question = ask(wanted, catalog, plan)
    names_of(wanted.generator.hosts, catalog)  # says now what is wrong with them
    if url is None and wanted.host is None and wanted.plan == SANDBOX:
        raise UsageError(
            "the sandbox lives only while `up` runs", hint=f"deployctl up --plan sandbox --model {wanted.model}"
        )
    if url is None and wanted.host is None and wanted.plan is None:
        raise UsageError(
            "there is nothing to test", hint="--url http://address:11434, --host user@address or --plan ID"
        )
    return catalog, plan, question


def _with_log(arrivals: Arrivals, question: Question, project: Project) -> Arrivals:
    name = question.workload.log
    if arrivals.log is not None or name is None:
        return arrivals
    try:
        return replace(arrivals, log=project.path(name), speed=arrivals.speed * question.workload.speed)
    except FileNotFoundError as error:
        raise UsageError(f"workload {question.workload.name}: {error}", hint="--replay FILE") from error


@contextmanager
def _served(wanted: Wanted, url: str | None, catalog: Catalog, place: Place, watch: Stopwatch) -> Iterator[_Found]:
    """Reach the server, through a tunnel where it is on a host, and see that it serves the model."""
    with ExitStack() as stack:
        reached: Reached | None = None
        host_watch: Watch | None = None
        if url is None:
            reached = stack.enter_context(reach(wanted, catalog, place, watch, root=False))
            with step(watch, "tunnel", "Opening the tunnel") as current:
                tunnel = stack.enter_context(open_tunnel(reached.target, OLLAMA_PORT))
                current.detail = f"{tunnel.url} to {reached.target.name}"
            url = tunnel.url
            host_watch = stack.enter_context(watching(reached.session, tunnel, enforce=True))
        url = url.rstrip("/")
        if wanted.generator.protocol == "openai":
            find_model(url, wanted.model)
            yield _Found(Serving(url, wanted.model, wanted.slots, host_watch), None, reached)
            return
        loaded = load(Server(url), wanted.model, None, watch, reached=reached)
        slots = wanted.slots or (loaded.journal.slots if loaded.journal else None)
        yield _Found(Serving(url, wanted.model, slots, host_watch, loaded.load_s), loaded, reached)


def _external_blocks(wanted: Wanted, loaded: LoadedModel | None) -> dict[str, Any]:
    if loaded is None:
        return {
            "model": {"name": wanted.model},
            "deployment": {"engine": "external", "settings": {"protocol": wanted.generator.protocol}},
            "sizing": None,
        }
    return {
        "model": {
            "name": wanted.model,
            "variant": loaded.model.quantization or None,
            "digest": loaded.model.digest or None,
            "bytes": loaded.model.bytes,
        },
        "deployment": {
            "engine": "external",
            "ollama_version": loaded.version,
            "settings": {},
            "gpu_share": loaded.gpu_share,
        },
        "sizing": None,
    }
