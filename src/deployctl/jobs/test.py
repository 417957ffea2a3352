"""Measure only: a model that is already served, behind a URL or on a host that is reached by a tunnel."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from deployctl.catalog.load import load_catalog
from deployctl.errors import Cancelled, DeployctlError, UsageError
from deployctl.events import Emit, step
from deployctl.hosts.tunnel import open_tunnel
from deployctl.jobs.loading import LoadedModel, load
from deployctl.jobs.measure import measure
from deployctl.jobs.order import ask
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


def test(wanted: Wanted, *, url: str | None, project: Project, place: Place, emit: Emit) -> Outcome:
    """Measure the capacity of ``url``, or of the Ollama on ``wanted.host``; nothing is installed or changed.

    Behind a bare URL there is no session to the host, so nothing watches its CPUs: the record says so.
    """
    watch = Stopwatch(emit)
    announce(project, watch)
    catalog = load_catalog(project)
    plan = catalog.plan(wanted.plan) if wanted.plan else None
    question = ask(wanted, catalog, plan)
    if url is None and wanted.host is None and wanted.plan == SANDBOX:
        raise UsageError(
            "the sandbox lives only while `up` runs", hint=f"deployctl up --plan sandbox --model {wanted.model}"
        )
    if url is None and wanted.host is None and wanted.plan is None:
        raise UsageError(
            "there is nothing to test", hint="--url http://address:11434, --host user@address or --plan ID"
        )
    store = RunStore(place.data_dir)
    run = store.new_run()
    try:
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
            server = Server(url.rstrip("/"))
            loaded = load(server, wanted.model, None, watch, reached=reached)
            measured = measure(
                question,
                url=server.url,
                reference=wanted.model,
                slots=wanted.slots or (loaded.journal.slots if loaded.journal else None),
                watch=host_watch,
                out_dir=run.dir,
                project=project,
                seed=wanted.seed,
                max_users=wanted.max_users,
                load_s=loaded.load_s,
                emit=watch,
            )
            blocks = {
                "host": host_block(reached) if reached else None,
                "telemetry": telemetry_block(host_watch),
                **_external_blocks(wanted, loaded),
            }
    except DeployctlError:
        store.abandon(run.id)
        raise
    except KeyboardInterrupt:
        store.abandon(run.id)
        raise Cancelled(f"cancelled; what was measured so far is kept in {run.dir}", hint="deployctl runs") from None
    notes = () if host_watch else ("nothing watched the host: steal, swap and neighbours would have gone unseen",)
    with step(watch, "record", "Writing record and report") as current:
        record = make_record(run.id, watch, question, measured, blocks, plan=plan, seed=wanted.seed, notes=notes)
        problem = keep(store, record, project, watch)
        current.detail = problem or run.id
    return Outcome(record, run, problem)


def _external_blocks(wanted: Wanted, loaded: LoadedModel) -> dict[str, Any]:
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
