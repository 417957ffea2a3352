"""What every report shows of a record, as rows of plain strings: HTML, terminal and Markdown only lay them out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from deployctl.records.parts import Percentiles, Probe
from deployctl.records.schema import Record
from deployctl.report import words
from deployctl.units import format_bytes, format_seconds

Rows = tuple[tuple[str, str], ...]

VERDICTS = {"pass": "pass", "fail": "fail", "inconclusive": "not decided", "invalid": "invalid"}
_PARTS = {
    "weights": "Weights",
    "kv": "Keys and values (KV)",
    "compute": "Compute buffers",
    "prompt_cache": "Prompt cache",
    "runtime": "Engine",
    "os_reserve": "Operating system",
}


@dataclass(frozen=True)
class ProbeRow:
    """One probe as strings; ``order`` is its place in time, from 1."""

    order: int
    users: int
    verdict: str
    label: str
    requests: str
    effective: str
    attainment: str
    interval: str
    ttft: tuple[str, str, str]
    tpot: str
    e2e: str
    tokens_per_s: str
    seconds: str
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class MemoryRow:
    """One part of the memory: its key in the record, its name, its size in bytes and as text."""

    key: str
    label: str
    size: int
    text: str


def probe_rows(record: Record) -> tuple[ProbeRow, ...]:
    """Return the probes by number of users, then by time."""
    rows = [_probe_row(order, probe) for order, probe in enumerate(record.probes, 1)]
    return tuple(sorted(rows, key=lambda row: (row.users, row.order)))


def memory_rows(record: Record) -> tuple[MemoryRow, ...]:
    """Return the parts of the predicted memory that are not zero; empty when nothing was sized."""
    if record.sizing is None:
        return ()
    sizes = record.sizing.bytes
    rows = [
        MemoryRow(key, label, size, format_bytes(size))
        for key, label in _PARTS.items()
        if (size := getattr(sizes, key))
    ]
    return tuple(rows)


def machine_rows(record: Record) -> Rows:
    """Return what was sold and what was found."""
    rows: list[tuple[str, str]] = []
    plan, host = record.plan, record.host
    if plan is not None:
        sold = [f"{plan.vcpus:g} vCPUs" if plan.vcpus else "", f"{plan.ram_gb:g} GB RAM" if plan.ram_gb else ""]
        sold += [f"{plan.disk_gb:g} GB disk" if plan.disk_gb else ""]
        sold += [f"{gpu.count} × {gpu.model}" + (f" ({gpu.vram_gb:g} GB)" if gpu.vram_gb else "") for gpu in plan.gpus]
        title = f"{plan.id} ({plan.title})" if plan.title and plan.title != plan.id else plan.id
        rows.append(("Plan", title))
        rows.append(("Sold", ", ".join(part for part in sold if part)))
        if plan.price is not None:
            rows.append(("Price", f"{plan.price.amount:,.10g} {plan.price.currency} per {plan.price.per}"))
    if host is not None:
        rows.append(("Host", host.name if host.name == host.address else f"{host.name} ({host.address})"))
        found = [f"{host.cpus} CPUs" if host.cpus is not None else "", host.cpu_model or ""]
        found += [f"quota {host.cpu_quota:g} CPUs" if host.cpu_quota is not None else ""]
        rows.append(("CPU found", ", ".join(part for part in found if part)))
        memory = format_bytes(host.ram_bytes) if host.ram_bytes is not None else ""
        rows.append(("RAM found", memory + (f", swap {format_bytes(host.swap_bytes)}" if host.swap_bytes else "")))
        for gpu in host.gpus:
            size = f", {format_bytes(gpu.vram_bytes)}" if gpu.vram_bytes is not None else ""
            driver = f", driver {gpu.driver}" if gpu.driver else ""
            rows.append(("GPU found", gpu.model + size + driver + (f", {gpu.detail}" if gpu.detail else "")))
        system = [host.os or "", host.kernel or "", host.arch or "", host.virtualization or ""]
        rows.append(("System", ", ".join(part for part in system if part)))
        rows.append(("Instruction sets", " ".join(host.cpu_flags)))
        rows.append(("SSH host key", host.host_key or ""))
    return _filled(rows)


def model_rows(record: Record) -> Rows:
    """Return the model, the engine and the fit."""
    model, deployment, sizing = record.model, record.deployment, record.sizing
    rows = [
        ("Model", model.name),
        ("Variant", model.variant or ""),
        ("Size", format_bytes(model.bytes) if model.bytes is not None else ""),
        ("Digest", model.digest or ""),
        ("Pulled as", model.reference if model.reference and model.reference != model.name else ""),
        ("Engine", words.engine(deployment.engine)),
        ("Engine version", deployment.ollama_version or ""),
        ("Archive SHA-256", deployment.archive_sha256 or ""),
        ("Kept running by", deployment.service_manager or ""),
        ("On the GPU", words.percent(deployment.gpu_share) if deployment.gpu_share is not None else ""),
    ]
    if sizing is not None:
        rows.append(("Slots", f"{sizing.slots}"))
        rows.append(("Context per slot", f"{sizing.context:,} tokens"))
        rows.extend(("Why", reason) for reason in sizing.reasons)
    return _filled(rows)


def settings_rows(record: Record) -> Rows:
    """Return the pinned settings of the deployment."""
    return _free(record.deployment.settings)


def condition_rows(record: Record) -> Rows:
    """Return the other circumstances of the test."""
    rows = [
        ("Started", f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("Ended", f"{record.ended_at:%Y-%m-%d %H:%M:%S} UTC"),
        ("deployctl", record.deployctl_version),
        ("Run", record.run_id),
    ]
    for kept in record.samples:
        count = f" ({kept.rows:,} requests)" if kept.rows is not None else ""
        rows.append(("Raw requests", kept.file + count))
        rows.append(("Their SHA-256", kept.sha256 or ""))
    rows.append(("Digest of the record", record.digest))
    return _filled([*rows, *_free(record.conditions), *_free(record.telemetry)])


def baseline_rows(record: Record) -> Rows:
    """Return what one user alone felt; empty when it was not measured."""
    base = record.baseline
    if base is None:
        return ()
    return _filled(
        [
            ("Time to first token", words.latency(base.ttft_s)),
            ("Time per output token", words.latency(base.tpot_s)),
            ("Whole answer", words.latency(base.e2e_s)),
            ("Reads", _rate(base.prefill_tokens_per_s)),
            ("Writes", _rate(base.decode_tokens_per_s)),
            ("Loading the model", format_seconds(base.load_s) if base.load_s is not None else ""),
            ("Requests", f"{base.requests}"),
        ]
    )


def timing_rows(record: Record) -> Rows:
    """Return the wall time of every step, then of the search's activities."""
    steps = [(name, format_seconds(seconds)) for name, seconds in record.timings.items()]
    inside = [(f"search: {name}", format_seconds(seconds)) for name, seconds in record.seconds_by_activity.items()]
    return _filled([*steps, *inside])


def remarks(record: Record) -> tuple[str, ...]:
    """Return the record's notes."""
    return tuple(words.clean(note) for note in record.notes)


def _probe_row(order: int, probe: Probe) -> ProbeRow:
    failures = [f"{count} × {words.clean(kind, 60)}" for kind, count in probe.failures.items() if count]
    said = [*(words.clean(reason, 200) for reason in probe.invalid_reasons)]
    said += [f"failed: {', '.join(failures)}"] if failures else []
    missed = [f"{words.limit(factor)} {count}×" for factor, count in probe.broken_by.items() if count]
    said += [f"missed: {', '.join(missed)}"] if missed else []
    said += [words.clean(note, 200) for note in probe.notes]
    ttft = probe.ttft_s
    return ProbeRow(
        order=order,
        users=probe.users,
        verdict=probe.verdict,
        label=VERDICTS[probe.verdict],
        requests=f"{probe.requests:,}",
        effective=f"{probe.effective_n:,.0f}" if probe.effective_n is not None else "",
        attainment=words.percent(probe.attainment) if probe.attainment is not None else "–",
        interval=words.interval(probe.attainment_low, probe.attainment_high),
        ttft=(words.latency(ttft.p50), words.latency(ttft.p95), words.latency(ttft.p99)) if ttft else ("–", "–", "–"),
        tpot=_p95(probe.tpot_s),
        e2e=_p95(probe.e2e_s),
        tokens_per_s=f"{probe.tokens_per_s:,.1f}" if probe.tokens_per_s is not None else "–",
        seconds=_held(probe.seconds),
        remarks=tuple(said),
    )


def _held(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _p95(block: Percentiles | None) -> str:
    return "–" if block is None else words.latency(block.p95)


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} tokens/s"


def _free(block: Mapping[str, JsonValue]) -> Rows:
    return _filled([(key, _value(value)) for key, value in block.items()])


def _value(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str | int):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _filled(rows: list[tuple[str, str]]) -> Rows:
    return tuple((words.clean(label, 120), words.clean(value)) for label, value in rows if value)
