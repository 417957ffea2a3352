"""From a host that answers to a served model: size, choose the engine, provision, open the tunnel, preload, verify."""

from __future__ import annotations

import contextlib
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from deployctl.catalog.plans import Plan
from deployctl.errors import ProvisionError, UsageError
from deployctl.events import Emit, Warned, step
from deployctl.hosts.facts import HostFacts
from deployctl.hosts.gpus import too_old
from deployctl.hosts.tunnel import Tunnel, open_tunnel
from deployctl.jobs.facts import ask_host
from deployctl.jobs.guard import guarded
from deployctl.jobs.hostprobe import HostProbe, probe_host
from deployctl.jobs.loading import LoadedModel, load
from deployctl.jobs.order import Order
from deployctl.jobs.preflight import models_warning, problems_of, warnings_of
from deployctl.jobs.reach import Reached, at_host
from deployctl.jobs.sold import missing, surplus, usable_cpus
from deployctl.jobs.source import choose_gguf, choose_source, refuse_unshipped
from deployctl.jobs.wanted import Place, Wanted
from deployctl.ollama.client import Server
from deployctl.provision.deploy import ModelFiles, provision_where_needed
from deployctl.provision.playbook import Play
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project
from deployctl.sizing.advise import predict_fit
from deployctl.sizing.choose import choose
from deployctl.sizing.fit import Capacity, Fit
from deployctl.units import format_bytes, format_rate


@dataclass(frozen=True)
class Planned:
    """What is going to be deployed: the engine, the fit, the model's files and every setting."""

    source: Source
    fit: Fit
    model: ModelFiles
    settings: Settings
    probe: HostProbe | None = None


@dataclass(frozen=True)
class Served:
    """A model that answers: where, and everything that was decided on the way."""

    url: str
    server: Server
    tunnel: Tunnel
    loaded: LoadedModel
    fit: Fit
    model: ModelFiles
    settings: Settings
    source: Source
    play: Play
    notes: tuple[str, ...]
    probe: HostProbe | None = None

    @property
    def slots(self) -> int:
        """The slots that the server really runs, where its journal says; else those that were asked for."""
        said = self.loaded.journal.slots if self.loaded.journal else None
        return said or self.settings.slots


def size_plan(wanted: Wanted, order: Order) -> Fit:
    """Size against what the plan sells, before any host is touched; raises DoesNotFit, or ModelUnavailable."""
    if wanted.engine == "embedded" and wanted.gguf is None:
        refuse_unshipped(order.reference)
    return _choose(only_variant(wanted, order, wanted.engine), order, Capacity.of_plan(order.plan))


def size_host(wanted: Wanted, order: Order, facts: HostFacts, emit: Emit) -> Fit:
    """Size against what is there and was sold, whichever is less of each; raises DoesNotFit."""
    with step(emit, "size", "Sizing") as current:
        sold = Capacity.of_plan(order.plan)
        found = Capacity(
            ram_bytes=facts.ram_bytes,
            vram_bytes=_vram(facts, sold),
            disk_bytes=sold.disk_bytes,
            cpus=int(usable_cpus(facts)) or 1,
        )
        fit = _choose(
            wanted,
            order,
            Capacity(
                ram_bytes=min(sold.ram_bytes, found.ram_bytes),
                vram_bytes=tuple(map(min, sold.vram_bytes, found.vram_bytes)),
                disk_bytes=sold.disk_bytes,
                cpus=min(sold.cpus, found.cpus),
                name=sold.name,
                plan=sold.plan,
            ),
        )
        slots = f"{fit.slots} slot{'s' if fit.slots > 1 else ''}"
        current.detail = (
            f"{order.reference} {fit.variant}, {slots} of {fit.context} tokens, "
            f"{format_bytes(fit.bytes.total)} of {format_bytes(fit.bytes.available)}"
        )
    return fit


def _vram(facts: HostFacts, sold: Capacity) -> tuple[int, ...]:
    """What the cards say; where none says anything, its driver comes with this run, and what was sold has to do."""
    known = tuple(gpu.vram_bytes for gpu in facts.gpus if gpu.vram_bytes)
    return known or (sold.vram_bytes[: len(facts.gpus)])


def settings_for(
    fit: Fit, order: Order, facts: HostFacts, *, port: int = Settings.port, models_dir: str | None = None
) -> Settings:
    """Every setting explicit. On a CPU host the threads are the CPUs that were sold and that a quota leaves."""
    cpus = min(order.plan.vcpus, int(usable_cpus(facts)) or 1)
    return Settings(
        slots=fit.slots,
        context=fit.context,
        threads=None if order.plan.gpus else cpus,
        kv_cache_type=fit.kv_type,
        port=port,
        models_dir=models_dir,
    )


def sandbox_port(root: Path) -> int:
    """A port for the sandbox's engine: it shares this machine's loopback, where an Ollama may well be running.

    The same for the same sandbox while it is free, so that its settings stay the same from run to run.
    """
    wanted = 20_000 + zlib.crc32(str(root).encode()) % 10_000
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ProvisionError("this machine has no free port for the sandbox's engine")


def plan_deployment(wanted: Wanted, order: Order, reached: Reached, place: Place, emit: Emit) -> Planned:
    """Choose engine, variant, slots, context and settings for a host; touches nothing on it."""
    if reached.sandbox and wanted.models_dir:
        raise UsageError("--models-dir is for real hosts: the sandbox has no other disk")
    wanted, facts, order = at_host(wanted, reached), reached.facts, ask_host(order, reached)
    with step(emit, "engine", "Choosing the engine") as current:
        source = choose_source(wanted, facts, place, emit)
        gguf = choose_gguf(wanted, source, place, order.reference)
        current.detail = f"{source.engine} {source.version}, from {source.url or 'a local archive'}"
    settled = replace(wanted, engine="embedded" if source.engine == "embedded" else "ollama")
    fit = size_host(only_variant(settled, order, source.engine), order, facts, emit)
    probe = _probe(wanted, order, fit, reached, emit)
    # Weights that are brought along are imported under the very name that was asked for.
    model = ModelFiles(
        reference=order.reference if gguf else fit.reference,
        gguf=gguf,
        bytes=gguf.stat().st_size if gguf else fit.bytes.weights,
        insecure=order.insecure,
    )
    port = sandbox_port(place.sandbox) if reached.sandbox else Settings.port
    settings = settings_for(fit, order, facts, port=port, models_dir=wanted.models_dir)
    return Planned(source, fit, model, settings, probe)


def _probe(wanted: Wanted, order: Order, fit: Fit, reached: Reached, emit: Emit) -> HostProbe | None:
    """Measure what a CPU's speed depends on, for as many CPUs as were sold; a GPU's is on its data sheet.

    It says what speed to expect. It decides no setting: those follow from what is sold, so that a second run finds
    nothing to change, and one night's runs compare with another's.
    """
    if not wanted.probe or order.plan.gpus:
        return None
    with step(emit, "probe", "Measuring memory bandwidth") as current:
        cpus = min(order.plan.vcpus, int(usable_cpus(reached.facts)) or 1)
        found = probe_host(reached.session, reached.facts, cpus)
        current.detail = found.words
        if found.memory_bandwidth_gb_s is not None:
            workload, slo = order.question.workload, order.question.slo
            one = predict_fit(found.sharpened(order.plan), fit, workload, slo)
            low, high = one.decode_tok_s / one.band, one.decode_tok_s * one.band
            current.detail += f": expect {format_rate(low)}–{format_rate(high)} tokens/s"
    sold, there = order.plan.memory_bandwidth_gb_s, found.memory_bandwidth_gb_s
    if sold and there and there < 0.8 * sold:
        emit(Warned(f"this host reads memory at {there:.1f} GB/s, the plan says {sold:g}: expect less speed"))
    return found


def only_variant(wanted: Wanted, order: Order, engine: str | None) -> Wanted:
    """Fix the variant where there is no choice: the embedded engine has one, and so has a file that is brought along.

    Of a file only its size is looked at here; the variant whose weights come nearest is the one that it holds.
    """
    if wanted.variant is not None:
        return wanted
    if wanted.gguf is not None and wanted.gguf.is_file():
        size = wanted.gguf.stat().st_size
        variants = order.model.variants
        return replace(wanted, variant=min(variants, key=lambda name: abs(variants[name].bytes - size)))
    if engine != "embedded":
        return wanted
    from deployctl.sandbox.model import MODEL

    return replace(wanted, variant=MODEL.variant)


@contextmanager
def deploy(
    wanted: Wanted,
    order: Order,
    reached: Reached,
    project: Project,
    place: Place,
    log: Path,
    emit: Emit,
    *,
    run: str | None = None,
) -> Iterator[Served]:
    """Provision the host and keep a tunnel to the served model open for the duration of the block.

    The host is locked for as long; ``run`` is the run's id. Raises HostBusy when somebody else has it.
    """
    with guarded(reached, f"serve {order.reference} for {order.plan.id}", run=run):
        yield from _deploy(wanted, order, reached, project, place, log, emit)


def _deploy(
    wanted: Wanted, order: Order, reached: Reached, project: Project, place: Place, log: Path, emit: Emit
) -> Iterator[Served]:
    notes = _compare(order.plan, reached, at_host(wanted, reached).models_dir, emit)
    planned = plan_deployment(wanted, order, reached, place, emit)
    source, fit, model, settings = planned.source, planned.fit, planned.model, planned.settings
    with step(emit, "provision", "Provisioning") as current:
        play = provision_where_needed(
            reached.session,
            settings,
            source,
            model,
            project=project,
            log=log,
            emit=emit,
            reboot=wanted.allow_reboot,
            anyway=bool(order.plan.gpus) and bool(reached.facts.gpu_problem or too_old(reached.facts.gpus)),
        )
        current.detail = f"{play.ok} tasks, {play.changed} changed"
        if not play.changed:
            looked = f"{play.ok} tasks" if play.ok else "as the last run left it"
            current.skip(f"nothing to do: {looked}, 0 changed")
    with step(emit, "tunnel", "Opening the tunnel") as current:
        tunnel = open_tunnel(reached.target, settings.port)
        current.detail = f"{tunnel.url} to {reached.target.name}, port {settings.port}"
    with tunnel:
        server = Server(tunnel.url)
        loaded = load(server, model.reference, settings, emit, reached=reached)
        yield Served(
            url=tunnel.url,
            server=server,
            tunnel=tunnel,
            loaded=loaded,
            fit=fit,
            model=model,
            settings=settings,
            source=source,
            play=play,
            notes=notes,
            probe=planned.probe,
        )


def _compare(plan: Plan, reached: Reached, models_dir: str | None, emit: Emit) -> tuple[str, ...]:
    if reached.sandbox:
        return ()
    short, over = missing(plan, reached.facts), surplus(plan, reached.facts)
    problems = problems_of(reached.facts, become=reached.target.become)
    if problems:
        raise ProvisionError(f"{reached.target.name}: {problems[0]}", hint=f"deployctl host check {reached.target}")
    for sentence in (*warnings_of(reached.facts), *models_warning(reached.facts, models_dir)):
        emit(Warned(sentence))
    for sentence in short:
        emit(Warned(sentence))
    for sentence in over:
        emit(Warned(f"{sentence}: a number measured here says too much for the plan"))
    return (*short, *over)


def _choose(wanted: Wanted, order: Order, capacity: Capacity) -> Fit:
    return choose(
        order.model,
        capacity,
        order.question.workload,
        variant=wanted.variant,
        slots=wanted.slots,
        context=wanted.context,
        kv_type=wanted.kv_type,
        last_logits=wanted.engine == "embedded",
        slo=order.question.slo,
        plan=order.plan,
        plans=order.catalog.plans.values(),
        models=order.catalog.models.values(),
    )
