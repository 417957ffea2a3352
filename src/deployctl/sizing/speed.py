"""Predicted speed from first principles: decode from memory bandwidth, prefill from compute, both for a whole batch.

One decode step reads the active weights once and each slot's KV cache, and multiplies every active parameter once per
slot. The constants are fitted to published figures (tests/sizing/published_speeds.yml); ``BAND`` is their scatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Gpu, Plan
from deployctl.sizing.fit import Fit, KvType
from deployctl.sizing.memory import KV_BYTES, elements_per_token

GB = 1e9


@dataclass(frozen=True)
class Engine:
    """Where the arithmetic happens: ``bandwidth`` in bytes/s and ``flops`` per second, both as llama.cpp reaches them.

    ``layer_s`` is the fixed time per layer and step (kernel launches on a GPU, barriers on a CPU). ``band`` is the
    factor by which a prediction may be off either way.
    """

    bandwidth: float
    flops: float
    layer_s: float
    band: float
    label: str


# Reached share of the data sheet's bandwidth, and time per layer and step. GDDR cards: RTX 4090 with Llama 3 8B at F16
# 54.3 tok/s and Q4_K_M 127.7 (873 of 1,008 GB/s at F16). HBM cards: A100 PCIe 54.6 and 138.3, H100 PCIe 67.8 and 144.5
# (github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference).
GDDR_SHARE, GDDR_LAYER_S = 0.95, 85e-6
HBM_SHARE, HBM_LAYER_S = 0.62, 85e-6
HBM_FROM = 1200 * GB  # no GDDR card of the catalogue reaches it

# Prompt processing of Llama 3 8B Q4_K_M (same table, 1,024 tokens): RTX 4090 6,899 tok/s, A100 PCIe 5,800, H100 PCIe
# 7,760, each times 2 operations per parameter. Unknown cards follow their bandwidth.
GPU_FLOPS = {
    "H200": 150e12, "H100": 125e12, "A100": 93e12, "4090": 110e12, "4080": 81e12, "3090": 62e12, "L40S": 95e12,
    "A6000": 74e12, "A10": 48e12, "L4": 40e12, "T4": 18e12, "3080": 54e12, "3070": 36e12, "4070": 59e12,
}  # fmt: skip
GPU_FLOPS_PER_BYTE = 65.0

CPU_SHARE, CPU_LAYER_S = 0.8, 20e-6
VCPU_BANDWIDTH = 8 * GB
"""Bandwidth that one vCPU draws where the plan gives none (about 10 GB/s per core on EPYC 7R13: 5.2 tok/s on two)."""
SOCKET_BANDWIDTH = 60 * GB
VCPU_FLOPS = 25e9
"""Operations per second that one vCPU reaches on quantized weights (AVX2; 270M model on two cores, batch of four)."""

BAND_CPU = 1.6
BAND_GPU = 1.35


def engine_of(plan: Plan) -> Engine:
    """Return the engine that a plan offers: its GPUs where it has any (layers one after another), else its CPU."""
    if plan.gpus:
        return _gpu_engine(plan.gpus[0])
    return cpu_engine(plan.vcpus, plan.memory_bandwidth_gb_s)


def cpu_engine(cpus: int, bandwidth_gb_s: float | None = None) -> Engine:
    """Return the engine of ``cpus`` CPUs that reach ``bandwidth_gb_s`` together (10^9 bytes/s; None: by count)."""
    raw = bandwidth_gb_s * GB if bandwidth_gb_s is not None else min(cpus * VCPU_BANDWIDTH, SOCKET_BANDWIDTH)
    return Engine(raw * CPU_SHARE, cpus * VCPU_FLOPS, CPU_LAYER_S, BAND_CPU, f"{cpus} CPUs, {raw / GB:.0f} GB/s")


def _gpu_engine(gpu: Gpu) -> Engine:
    raw = (gpu.memory_bandwidth_gb_s or 300) * GB
    share, layer_s = (HBM_SHARE, HBM_LAYER_S) if raw >= HBM_FROM else (GDDR_SHARE, GDDR_LAYER_S)
    key = max((name for name in GPU_FLOPS if name in gpu.model), key=len, default=None)
    flops = GPU_FLOPS[key] if key is not None else raw * GPU_FLOPS_PER_BYTE
    return Engine(raw * share, flops, layer_s, BAND_GPU, f"{gpu.model}, {raw / GB:.0f} GB/s")


def active_share(model: ModelEntry) -> float:
    """Return the share of the weights that one token reads: 1, or less for a mixture of experts."""
    return (model.active_parameters or model.parameters) / model.parameters


def share_read(model: ModelEntry, batch: int) -> float:
    """Return the expected share of the weights that one step of ``batch`` tokens reads.

    Each token picks its experts; with independent picks a given expert is missed by all with probability
    (1 - used/experts)^batch.
    """
    one = active_share(model)
    if not model.experts or one >= 1 or model.experts_used >= model.experts:
        return one
    picked = model.experts_used / model.experts
    expert_weights = (1 - one) / (1 - picked)  # the share of all parameters that lies in experts
    return (1 - expert_weights) + expert_weights * (1 - (1 - picked) ** batch)


def step_s(
    model: ModelEntry, weights: float, engine: Engine, *, batch: int, held: float, kv_type: KvType = "f16"
) -> float:
    """Return the seconds of one decode step that gives each of ``batch`` streams one token.

    ``weights`` in bytes; ``held`` tokens in each stream's context.
    """
    kv_token = 0.0
    for layer in range(model.layers):
        seen = min(held, model.sliding_window or held) if model.windowed_by_layer[layer] else held
        kv_token += seen * elements_per_token(model, layer)
    kv = kv_token * KV_BYTES[kv_type]
    read = weights * share_read(model, batch) + kv * batch
    compute = 2 * (model.active_parameters or model.parameters) * batch / engine.flops
    return float(read / engine.bandwidth + compute + engine.layer_s * model.layers)


def prefill_tok_s(model: ModelEntry, engine: Engine) -> float:
    """Return prompt tokens per second of one request: two operations per active parameter and token."""
    return engine.flops / (2 * (model.active_parameters or model.parameters))


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
    weights = fit.bytes.weights - fit.model.projector_bytes
    share = min(1.0, fit.gpu_layers / (fit.model.layers + 1)) if plan.gpus else 0.0
    cpu = cpu_engine(plan.vcpus, plan.memory_bandwidth_gb_s)
    engines = [(engine_of(plan), share), (cpu, 1 - share)] if plan.gpus else [(cpu, 1.0)]

    def step(batch: int) -> float:
        return math.fsum(
            part * step_s(fit.model, weights, engine, batch=batch, held=held, kv_type=fit.kv_type)
            for engine, part in engines
            if part > 0
        )

    prefill = 1 / math.fsum(part / prefill_tok_s(fit.model, engine) for engine, part in engines if part > 0)
    band = max(engine.band for engine, part in engines if part > 0)
    return Speed(prefill, 1 / step(1), 1 / step(fit.slots), band)
