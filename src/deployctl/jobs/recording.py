"""Turning what a job found into its record."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployctl import __version__, interrupts
from deployctl.catalog.plans import Plan
from deployctl.events import Emit, Event, StepFinished
from deployctl.jobs.measure import Measured
from deployctl.jobs.order import Order, Question
from deployctl.jobs.reach import Reached
from deployctl.jobs.watch import Watch
from deployctl.records.schema import Record
from deployctl.sizing.fit import Fit

if TYPE_CHECKING:
    from deployctl.jobs.deploy import Served

FLAGS_THAT_MATTER = ("avx", "avx2", "avx512f", "avx512_vnni", "amx_tile", "f16c", "fma", "asimd", "sve")


@dataclass
class Stopwatch:
    """An ``Emit`` that passes events on and keeps the wall time of every step, in seconds, in order."""

    emit: Emit
    timings: dict[str, float] = field(default_factory=dict)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self, event: Event) -> None:
        """Keep a finished step's time and pass the event on; the end of a step is no place to interrupt."""
        if not isinstance(event, StepFinished):
            interrupts.check()
        if isinstance(event, StepFinished):
            self.timings[event.step] = round(event.seconds, 3)
        self.emit(event)


def plan_block(plan: Plan | None) -> dict[str, Any] | None:
    """The plan as the catalogue has it."""
    return None if plan is None else plan.model_dump(mode="json")


def host_block(reached: Reached) -> dict[str, Any]:
    """The host as it was found."""
    facts = reached.facts
    return {
        "name": reached.target.name,
        "address": reached.target.address,
        "os": f"{facts.os_id} {facts.os_version}".strip() or None,
        "cpus": facts.cpus,
        "ram_bytes": facts.ram_bytes,
        "gpus": [
            {"model": gpu.model, "vram_bytes": gpu.vram_bytes, "driver": gpu.driver or None} for gpu in facts.gpus
        ],
        "arch": facts.arch,
        "kernel": facts.kernel,
        "cpu_model": facts.cpu_model or None,
        "cpu_flags": [flag for flag in facts.cpu_flags if flag in FLAGS_THAT_MATTER],
        "cpu_quota": facts.cpu_quota,
        "swap_bytes": facts.swap_bytes,
        "virtualization": facts.virtualization or None,
        "host_key": reached.session.fingerprint,
    }


def telemetry_block(watch: Watch | None) -> dict[str, Any]:
    """The host over the whole run: the figures that its kernel gave; nothing where nobody watched."""
    if watch is None:
        return {}
    return {name: value for name, value in asdict(watch.so_far()).items() if value is not None}


def sizing_block(fit: Fit) -> dict[str, Any]:
    """The fit, as predicted before the host was touched."""
    return {
        "bytes": fit.bytes.to_dict(),
        "slots": fit.slots,
        "context": fit.context,
        "kv_type": fit.kv_type,
        "gpu_layers": fit.gpu_layers,
        "fits": fit.fits,
        "reasons": list(fit.reasons),
    }


def served_blocks(order: Order, reached: Reached, served: Served) -> dict[str, Any]:
    """Model, deployment and sizing of a host that deployctl itself set up."""
    fit = served.fit
    return {
        "model": {
            "name": order.reference,
            "variant": fit.variant,
            "digest": served.loaded.model.digest or None,
            "bytes": served.loaded.model.bytes,
            "reference": served.model.reference,
        },
        "deployment": {
            "engine": served.source.engine,
            "ollama_version": served.loaded.version,
            "settings": asdict(served.settings),
            "archive_sha256": served.source.sha256,
            "service_manager": reached.target.service_manager,
            "gpu_share": served.loaded.gpu_share,
            "found": None if served.loaded.journal is None else asdict(served.loaded.journal),
        },
        "sizing": sizing_block(fit),
        "conditions": {"host_probe": served.probe.to_dict()} if served.probe else {},
    }


def measured_blocks(measured: Measured) -> dict[str, Any]:
    """Baseline, probes and capacity."""
    result = measured.result
    return {
        "baseline": baseline_block(measured),
        "probes": [asdict(probe) for probe in result.probes],
        "capacity": {
            "status": result.status,
            "certified_users": result.certified_users,
            "at_most_users": result.at_most_users,
            "confidence": result.confidence,
            "limited_by": result.limited_by,
        },
        "seconds_by_activity": dict(result.seconds_by_activity),
        "samples": samples_block(measured.samples),
    }


def baseline_block(measured: Measured) -> dict[str, Any]:
    """One user alone."""
    kept = asdict(measured.baseline)
    names = ("requests", "ttft_s", "tpot_s", "e2e_s", "prefill_tokens_per_s", "decode_tokens_per_s")
    return {**{name: kept[name] for name in names}, "load_s": measured.load_s}


def samples_block(files: tuple[Path, ...]) -> list[dict[str, Any]]:
    """The files of raw requests (several where the load generator had to be started anew), named by their content.

    Each is renamed to ``samples-`` and the first 32 digits of its SHA-256: whatever bears that name is that content.
    """
    found = []
    for path in files:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        kept = path.replace(path.with_name(f"samples-{digest[:32]}{path.suffix}"))
        found.append(
            {
                "file": kept.name,
                "format": kept.suffix.removeprefix("."),
                "rows": rows_of(kept),
                "sha256": digest,
                "bytes": kept.stat().st_size,
            }
        )
    return found


def rows_of(path: Path) -> int | None:
    """How many requests a file of samples holds; None for a stream that was not finished."""
    if path.suffix != ".parquet":
        return None
    import pyarrow.parquet as pq

    rows: int = pq.ParquetFile(path).metadata.num_rows
    return rows


def make_record(
    run_id: str,
    watch: Stopwatch,
    question: Question,
    measured: Measured,
    blocks: Mapping[str, Any],
    *,
    plan: Plan | None,
    seed: int,
    notes: tuple[str, ...],
) -> Record:
    """Put the blocks together."""
    return Record.model_validate(
        {
            "run_id": run_id,
            "started_at": watch.started_at,
            "ended_at": datetime.now(UTC),
            "deployctl_version": __version__,
            "plan": plan_block(plan),
            "workload": question.workload.model_dump(mode="json", exclude={"log", "speed"}),
            "slo": {**asdict(question.slo.to_slo()), "name": question.slo.name},
            "timings": watch.timings,
            "notes": (*notes, *measured.generated.notes, *measured.result.notes),
            **blocks,
            "conditions": {**conditions(seed, measured), **blocks.get("conditions", {})},
            **measured_blocks(measured),
        }
    )


def conditions(seed: int, measured: Measured) -> dict[str, Any]:
    """Circumstances of the test that belong to no other block."""
    return {
        "seed": seed,
        "load_generator": f"Locust {metadata.version('locust')}, {measured.generated.words()}",
        "load_generator_cpus": os.cpu_count(),
        "short_answers": round(measured.baseline.short_answers, 4),
        **measured.generated.conditions(),
    }


def embedded_note() -> str:
    """What a number measured on the embedded engine does not say."""
    return "the embedded engine is llama.cpp behind Ollama's API: its speed is not that of a genuine Ollama"


def shared_cores_note() -> str:
    """What a number measured in the sandbox does not say."""
    return "the sandbox shares its CPUs with the load generator: a host of its own serves more"
