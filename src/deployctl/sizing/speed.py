"""Predicted speed from first principles: decode from memory bandwidth, prefill from compute, both for a whole batch.

One decode step reads the active weights once and each slot's KV cache, and multiplies every active parameter once per
slot. The constants are fitted to published figures (tests/sizing/published_speeds.yml, the rows not
marked unseen); ``BAND`` is their scatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Gpu, Plan, ProbedPlan
from deployctl.sizing.fit import Fit, KvType
from deployctl.sizing.memory import KV_BYTES, elements_by_layer

GB = 1e9


@dataclass(frozen=True)
class Engine:
    """Where the arithmetic happens, as llama.cpp reaches it.

    ``bandwidth`` in bytes/s; ``decode_flops`` and ``prefill_flops`` in operations/s; ``layer_s`` is the fixed time per
    layer and step (kernel launches, barriers). ``overlap`` is the exponent of the norm that joins reading and
    computing: 1 adds them, larger ones let them overlap. ``band`` is the factor by which a prediction may be off.
    """

    bandwidth: float
    decode_flops: float
    prefill_flops: float
    layer_s: float
    overlap: float
    band: float
    label: str


# Least squares over tests/sizing/published_speeds.yml: the share of the data sheet's bandwidth that is reached, and the
# time per layer and step. The worst row is 9 % off.
GDDR_SHARE, GDDR_LAYER_S = 0.92, 96e-6
HBM_SHARE, HBM_LAYER_S = 0.90, 163e-6
HBM_FROM = 1200 * GB  # no GDDR card sold with a plan reaches it

# Prompt processing of Llama 3 8B Q4_K_M, 1,024 tokens (github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference), times
# two operations per parameter: RTX 4090 6,899 tok/s, 4080 5,065, 3090 3,865, 3080 3,557, 3070 2,284, 4070 Ti 3,653;
# A100 80 GB 3,444 and H100 PCIe 4,869 with Llama 2 7B Q4_0. Cards without a row are scaled by their tensor throughput.
GPU_FLOPS = {
    "H200": 90e12, "H100": 80e12, "A100": 60e12, "4090": 103e12, "4080": 76e12, "3090": 58e12, "3080": 53e12,
    "4070": 55e12, "3070": 34e12, "L40S": 90e12, "A6000": 55e12, "A10": 40e12, "L4": 35e12, "T4": 15e12,
}  # fmt: skip
GPU_FLOPS_PER_BYTE = 60.0
GPU_OVERLAP = 2.0
"""A GPU computes while it reads: an RTX 4090 takes 15.3 ms for one stream of an 8B model in BF16 and 16.5 ms for eight
(github.com/ggml-org/llama.cpp/pull/15131)."""
GPU_BATCH_SHARE = 0.4
"""Share of the prefill rate that the small products of a decode step reach."""

CPU_SHARE, CPU_LAYER_S, CPU_OVERLAP = 0.8, 20e-6, 2.0
VCPU_BANDWIDTH = 9 * GB
"""Bandwidth that one vCPU draws where the plan gives none: EPYC 7R13 12 (5.2 tok/s on two), the sandbox's machine 7."""
SOCKET_BANDWIDTH = 60 * GB
VCPU_DECODE_FLOPS, VCPU_PREFILL_FLOPS = 30e9, 50e9
"""Operations per second of one vCPU on quantized weights: published cores reach 18 to 57 in decode, up to 92 in prefill
(i3-1315U: 28.7 tok/s of a 3B model on two cores), and two vCPUs share a core."""

# The share of those operations that remains with narrower vector units: llama.cpp's byte products work on 32 lanes with
# AVX2, on 16 with AVX and NEON, and one by one without. Rough: no published figure was found.
VECTORS = {"none": 0.1, "sse": 0.25, "avx": 0.5, "neon": 0.8, "avx2": 1.0, "avx512": 1.0}

BAND_CPU = 1.6
BAND_CPU_MEASURED = 1.4
"""Where the host's bandwidth was measured: what remains is the share of it that the engine reaches."""
BAND_GPU = 1.3


def vectors_of(flags: frozenset[str]) -> str:
    """Return the widest vector unit that the flags of /proc/cpuinfo name."""
    for unit, flag in (("avx512", "avx512f"), ("avx2", "avx2"), ("avx", "avx"), ("neon", "asimd"), ("sse", "sse2")):
        if flag in flags:
            return unit
    return "none" if flags else "unknown"


def engine_of(plan: Plan) -> Engine:
    """Return the engine that a plan offers: its GPUs where it has any (layers one after another), else its CPU."""
    if plan.gpus:
        return gpu_engine(plan.gpus[0])
    return _plan_cpu(plan)


def _plan_cpu(plan: Plan) -> Engine:
    if not isinstance(plan, ProbedPlan):
        return cpu_engine(plan.vcpus, plan.memory_bandwidth_gb_s)
    return replace(cpu_engine(plan.vcpus, plan.memory_bandwidth_gb_s, vectors=plan.vectors), band=BAND_CPU_MEASURED)


def cpu_engine(cpus: int, bandwidth_gb_s: float | None = None, *, vectors: str = "avx2") -> Engine:
    """Return the engine of ``cpus`` CPUs that reach ``bandwidth_gb_s`` together (10^9 bytes/s; None: by count)."""
    raw = bandwidth_gb_s * GB if bandwidth_gb_s is not None else min(cpus * VCPU_BANDWIDTH, SOCKET_BANDWIDTH)
    return Engine(
        bandwidth=raw * CPU_SHARE,
        decode_flops=cpus * VCPU_DECODE_FLOPS * VECTORS[vectors],
        prefill_flops=cpus * VCPU_PREFILL_FLOPS * VECTORS[vectors],
        layer_s=CPU_LAYER_S,
        overlap=CPU_OVERLAP,
        band=BAND_CPU,
        label=f"{cpus} CPUs, {raw / GB:.0f} GB/s",
    )


def gpu_engine(gpu: Gpu) -> Engine:
    """Return the engine of one such GPU; several hold a model's layers one after another and are no faster together."""
    raw = (gpu.memory_bandwidth_gb_s or 300) * GB
    share, layer_s = (HBM_SHARE, HBM_LAYER_S) if raw >= HBM_FROM else (GDDR_SHARE, GDDR_LAYER_S)
    key = max((name for name in GPU_FLOPS if name in gpu.model), key=len, default=None)
    flops = GPU_FLOPS[key] if key is not None else raw * GPU_FLOPS_PER_BYTE
    return Engine(
        bandwidth=raw * share,
        decode_flops=flops * GPU_BATCH_SHARE,
        prefill_flops=flops,
        layer_s=layer_s,
        overlap=GPU_OVERLAP,
        band=BAND_GPU,
        label=f"{gpu.model}, {raw / GB:.0f} GB/s",
    )


def decode_parameters(model: ModelEntry) -> float:
    """Return the parameters that one decoded token computes with: an input embedding of its own is only looked up."""
    if model.active_parameters is not None:
        return model.active_parameters
    return model.parameters - (0 if model.tied_embeddings else model.vocabulary * model.embedding)


def prefill_parameters(model: ModelEntry) -> float:
    """Return the parameters that one prompt token computes with: the output is needed for the last token only."""
    return max(1.0, decode_parameters(model) - model.vocabulary * model.embedding)


def share_read(model: ModelEntry, batch: int) -> float:
    """Return the expected share of the weights that one step of ``batch`` tokens reads.

    Each token picks its experts; with independent picks a given expert is missed by all with probability
    (1 - used/experts)^batch.
    """
    one = decode_parameters(model) / model.parameters
    if not model.experts or one >= 1 or model.experts_used >= model.experts:
        return one
    picked = model.experts_used / model.experts
    table = 0 if model.tied_embeddings else model.vocabulary * model.embedding / model.parameters
    in_experts = (1 - table - one) / (1 - picked)  # the share of all parameters that lies in experts
    return (1 - table - in_experts) + in_experts * (1 - (1 - picked) ** batch)


def step_s(
    model: ModelEntry, weights: float, engine: Engine, *, batch: int, held: float, kv_type: KvType = "f16"
) -> float:
    """Return the seconds of one decode step that gives each of ``batch`` streams one token.

    ``weights`` in bytes; ``held`` tokens in each stream's context.
    """
    window = min(held, model.sliding_window or held)
    seen = sum(
        (window if windowed else held) * per_token
        for windowed, per_token in zip(model.windowed_by_layer, elements_by_layer(model), strict=True)
    )
    kv = seen * KV_BYTES[kv_type]
    read = weights * share_read(model, batch) + kv * batch
    reading = read / engine.bandwidth
    computing = 2 * decode_parameters(model) * batch / engine.decode_flops
    joined = (reading**engine.overlap + computing**engine.overlap) ** (1 / engine.overlap)
    return float(joined + engine.layer_s * model.layers)


def prefill_tok_s(model: ModelEntry, engine: Engine) -> float:
    """Return prompt tokens per second of one request: two operations per parameter and token."""
    return engine.prefill_flops / (2 * prefill_parameters(model))


@dataclass(frozen=True)
class Speed:
    """Tokens per second, predicted: prefill of one prompt, decode of one stream, and of one stream in a full batch."""

    prefill_tok_s: float
    decode_tok_s: float
    decode_full_tok_s: float
    band: float

    @property
    def tpot_full_s(self) -> float:
        """Seconds per output token with all slots busy."""
        return 1 / self.decode_full_tok_s


def predict(fit: Fit, plan: Plan, held: float) -> Speed:
    """Return the speed of ``fit`` on ``plan`` with ``held`` tokens in each busy slot.

    A model that is only partly on the GPU runs each part at its own speed, one after the other.
    """
    prefill = 1 / math.fsum(part / prefill_tok_s(fit.model, engine) for engine, part in _engines(fit, plan))
    band = max(engine.band for engine, _ in _engines(fit, plan))
    one, full = step_seconds(fit, plan, held, 1), step_seconds(fit, plan, held, fit.slots)
    return Speed(prefill, 1 / one, 1 / full, band)


def bytes_per_token(fit: Fit) -> float:
    """Return the bytes of weights that one token of one stream reads."""
    return fit.model.variants[fit.variant].bytes * share_read(fit.model, 1)


def step_seconds(fit: Fit, plan: Plan, held: float, busy: int) -> float:
    """Return the seconds of one decode step with ``busy`` slots busy and ``held`` tokens in each."""
    weights = fit.model.variants[fit.variant].bytes
    return math.fsum(
        part * step_s(fit.model, weights, engine, batch=busy, held=held, kv_type=fit.kv_type)
        for engine, part in _engines(fit, plan)
    )


def _engines(fit: Fit, plan: Plan) -> list[tuple[Engine, float]]:
    """Return the engines of the plan, each with its share of the layers."""
    cpu = _plan_cpu(plan)
    if not plan.gpus:
        return [(cpu, 1.0)]
    share = min(1.0, fit.gpu_layers / (fit.model.layers + 1))
    return [(engine, part) for engine, part in ((gpu_engine(plan.gpus[0]), share), (cpu, 1 - share)) if part > 0]
