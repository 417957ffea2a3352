"""The blocks of a record: what was sold, found, set up, asked and seen. `schema.Record` puts them together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from deployctl.records.values import Bound, Count, Finite, Free, Latency, Part, Seconds, Share, ShareOfNothing

Verdict = Literal["pass", "fail", "inconclusive", "invalid"]
CapacityStatus = Literal["certified", "at_least", "not_met", "inconclusive", "invalid"]


class PlanGpu(Part):
    """One kind of GPU that the plan sells."""

    model: str = Field(description="name of the card as sold")
    count: int = Field(default=1, ge=1, description="how many of them")
    vram_gb: float | None = Field(default=None, ge=0, description="memory of one card in GB as sold")
    memory_bandwidth_gb_s: float | None = Field(default=None, ge=0, description="memory bandwidth of one card, GB/s")


class Price(Part):
    """What the plan costs."""

    amount: float = Field(ge=0, description="price of one period")
    currency: str = Field(description="ISO 4217 code")
    per: str = Field(default="month", description="the period: hour, month, year")


class Promise(Part):
    """What the plan's sales page claims for one model."""

    users: int | None = Field(default=None, ge=0, description="concurrent users")
    tokens_per_s: float | None = Field(default=None, ge=0, description="generated tokens per second for one user")
    seconds_for_200_tokens: float | None = Field(default=None, ge=0, description="time of a 200-token answer, s")
    slo: str | None = Field(default=None, description="name of the SLO under which the users are promised")


class Plan(Part):
    """What is sold, as the catalogue said on the day of the run."""

    id: str = Field(description="the plan's id in the catalogue")
    title: str = Field(default="", description="its name for people")
    vcpus: float | None = Field(default=None, ge=0, description="virtual CPUs sold")
    ram_gb: float | None = Field(default=None, ge=0, description="memory sold, GB")
    disk_gb: float | None = Field(default=None, ge=0, description="disk sold, GB")
    cpu_class: str | None = Field(default=None, description="class of CPU sold, where the plan says")
    memory_bandwidth_gb_s: float | None = Field(default=None, ge=0, description="memory bandwidth assumed, GB/s")
    gpus: tuple[PlanGpu, ...] = Field(default=(), description="GPUs sold")
    price: Price | None = Field(default=None, description="its price")
    promises: dict[str, Promise] = Field(default_factory=dict, description="promises of the sales page, by model")
    slo: str | None = Field(default=None, description="name of the plan's default SLO")
    workload: str | None = Field(default=None, description="name of the plan's default workload")


class Model(Part):
    """The model and the variant that was served."""

    name: str = Field(description="the Ollama reference that was asked for, `name:tag`")
    variant: str | None = Field(default=None, description="the quantization served, for example `q4_K_M`")
    digest: str | None = Field(default=None, description="digest as the engine reports it, SHA-256 in hex")
    bytes: int | None = Field(default=None, ge=0, description="size of the variant, bytes")
    reference: str | None = Field(default=None, description="the reference that was pulled for the variant")
    architecture: str | None = Field(default=None, description="model family, for example `llama`")
    parameters: int | None = Field(default=None, ge=0, description="number of parameters")


class HostGpu(Part):
    """One GPU found on the host."""

    model: str = Field(description="name of the card as found")
    vram_bytes: int | None = Field(default=None, ge=0, description="its memory, bytes")
    driver: str | None = Field(default=None, description="driver version")
    detail: str = Field(default="", description="anything else that was read (PCI id, compute capability)")


class Host(Part):
    """The machine that was measured, as found."""

    name: str = Field(description="its name in the inventory, or the address it was given by")
    address: str = Field(description="where it was reached")
    os: str | None = Field(default=None, description="distribution and version")
    cpus: int | None = Field(default=None, ge=0, description="CPUs online")
    ram_bytes: int | None = Field(default=None, ge=0, description="memory, bytes")
    gpus: tuple[HostGpu, ...] = Field(default=(), description="GPUs found")
    arch: str | None = Field(default=None, description="machine architecture")
    kernel: str | None = Field(default=None, description="kernel release")
    cpu_model: str | None = Field(default=None, description="CPU model name")
    cpu_flags: tuple[str, ...] = Field(default=(), description="instruction sets that matter (avx2, avx512f, ...)")
    cpu_quota: float | None = Field(default=None, ge=0, description="CPUs' worth of time that a quota allows")
    swap_bytes: int | None = Field(default=None, ge=0, description="swap, bytes")
    virtualization: str | None = Field(default=None, description="kind of virtual machine or container")
    host_key: str | None = Field(default=None, description="fingerprint of the SSH host key")


class Deployment(Part):
    """The engine and its settings, all explicit."""

    engine: str = Field(
        description="`ollama` (genuine), `embedded` (ours, llama.cpp behind Ollama's API) or `external`"
    )
    ollama_version: str | None = Field(default=None, description="version that the engine's API reports")
    settings: Free = Field(default_factory=dict, description="every setting that was pinned, by name")
    archive_sha256: str | None = Field(default=None, description="SHA-256 of the archive that was installed")
    service_manager: str | None = Field(default=None, description="`systemd` or `process`")
    gpu_share: Share | None = Field(default=None, description="share of the model that the engine placed on GPUs")
    found: Free | None = Field(
        default=None, description="what the engine's journal says of the load: slots, context, threads, bytes by part"
    )


class SizingBytes(Part):
    """Memory by part, bytes, as predicted before the host was touched."""

    weights: Count = Field(default=0, description="the model's weights")
    kv: Count = Field(default=0, description="keys and values of every slot at full context")
    compute: Count = Field(default=0, description="compute buffers")
    prompt_cache: Count = Field(default=0, description="the engine's prompt cache")
    runtime: Count = Field(default=0, description="the engine's own code and libraries")
    os_reserve: Count = Field(default=0, description="left to the operating system")
    total: Count = Field(default=0, description="sum of the parts")
    available: Count | None = Field(default=None, description="what the plan or host has")


class Sizing(Part):
    """The fit: which variant, how many slots, which context."""

    bytes: SizingBytes = Field(default_factory=SizingBytes, description="memory by part")
    slots: Count = Field(description="requests that are served in parallel")
    context: Count = Field(description="tokens of context per slot")
    kv_type: str | None = Field(default=None, description="type of the keys and values: `f16`, `q8_0`, `q4_0`")
    gpu_layers: Count | None = Field(default=None, description="layers placed on GPUs")
    fits: bool | None = Field(default=None, description="whether the parts fit into what is available")
    reasons: tuple[str, ...] = Field(default=(), description="why this variant and these slots")


class Dist(Part):
    """A distribution of the workload."""

    dist: str = Field(description="`lognormal`, `exponential`, `uniform`, `constant` or `empirical`")
    mean: Finite = Field(default=None, description="its mean")
    cv: Finite = Field(default=None, description="coefficient of variation")
    min: Finite = Field(default=None, description="values are cut off below this")
    max: Finite = Field(default=None, description="values are cut off above this")
    values: tuple[float, ...] | None = Field(default=None, description="the values of an empirical distribution")


class Workload(Part):
    """What a user did."""

    name: str = Field(description="its name in the catalogue")
    title: str = Field(default="", description="its name for people")
    prompt_tokens: Dist | None = Field(default=None, description="length of a prompt, tokens")
    output_tokens: Dist | None = Field(default=None, description="length of an answer, tokens")
    think_s: Dist | None = Field(default=None, description="pause between an answer and the next request, seconds")
    turns: int | Dist = Field(default=1, description="requests per conversation")
    language: str | None = Field(default=None, description="language of the prompts")
    api: str | None = Field(default=None, description="`chat` or `generate`")
    think: bool = Field(default=False, description="whether the model was allowed to think first")
    warm: bool = Field(default=False, description="true: turns share a prefix; false: every prompt is unique")
    timeout_s: float | None = Field(default=None, ge=0, description="a request that takes longer has failed, seconds")


class Slo(Part):
    """What one request must meet, and which share of requests must."""

    ttft_s: float | None = Field(default=None, gt=0, description="time to first token, seconds; null: not asked")
    tpot_s: float | None = Field(default=None, gt=0, description="time per output token, seconds; null: not asked")
    e2e_s: float | None = Field(default=None, gt=0, description="time to the last byte, seconds; null: not asked")
    attainment: Share = Field(description="share of requests that must meet all of them")
    name: str | None = Field(default=None, description="its name in the catalogue")


class Baseline(Part):
    """One user alone on the host, before the search (medians)."""

    requests: Count = Field(default=0, description="requests measured")
    ttft_s: Latency = Field(default=None, description="time to first token, seconds")
    tpot_s: Latency = Field(default=None, description="time per output token, seconds")
    e2e_s: Latency = Field(default=None, description="time to the last byte, seconds")
    prefill_tokens_per_s: float | None = Field(default=None, ge=0, description="prompt tokens read per second")
    decode_tokens_per_s: float | None = Field(default=None, ge=0, description="tokens written per second")
    load_s: Latency = Field(default=None, description="time to load the model, seconds")


class Percentiles(Part):
    """Percentiles over all requests, seconds. Null means infinite: so many requests failed, or never got that far."""

    p50: Latency = Field(description="median")
    p95: Latency = Field(description="95th percentile")
    p99: Latency = Field(description="99th percentile")


def _percentiles_of_nothing(block: object) -> object:
    if isinstance(block, Mapping) and all(isinstance(value, float) and math.isnan(value) for value in block.values()):
        return None
    return block


PercentilesOrNull = Annotated[Percentiles | None, BeforeValidator(_percentiles_of_nothing)]


class Probe(Part):
    """One load level, held until it was decided."""

    users: int = Field(ge=1, description="concurrent users")
    verdict: Verdict = Field(description="`pass`, `fail`, `inconclusive` or `invalid`")
    requests: Count = Field(description="steady requests, which the attainment is of")
    effective_n: float | None = Field(
        default=None, ge=0, description="independent requests that the steady part is worth"
    )
    attainment: ShareOfNothing = Field(
        default=None, description="share of the steady requests that met the SLO; null: there was none"
    )
    attainment_low: Bound | None = Field(default=None, description="lower confidence bound of the attainment")
    attainment_high: Bound | None = Field(default=None, description="upper confidence bound of the attainment")
    ttft_s: PercentilesOrNull = Field(default=None, description="time to first token")
    tpot_s: PercentilesOrNull = Field(default=None, description="time per output token")
    e2e_s: PercentilesOrNull = Field(default=None, description="intended start to last byte")
    tokens_per_s: float | None = Field(default=None, ge=0, description="tokens generated per second, all users")
    invalid_reasons: tuple[str, ...] = Field(default=(), description="what makes the probe void; empty: it counts")
    seconds: Seconds | None = Field(default=None, description="time that the level held the host, seconds")
    discarded: Count = Field(
        default=0, description="further requests: warm-up, and those still open when the probe was decided"
    )
    broken_by: dict[str, Count] = Field(
        default_factory=dict, description="requests that broke each factor (`ttft`, `tpot`, `e2e`, `failures`)"
    )
    failures: dict[str, Count] = Field(default_factory=dict, description="failed requests by kind of failure")
    telemetry: Free = Field(default_factory=dict, description="the host during the probe (steal, CPU, swap, memory)")
    notes: tuple[str, ...] = Field(default=(), description="remarks on this probe")


class Capacity(Part):
    """The answer."""

    status: CapacityStatus = Field(description="`certified`, `at_least`, `not_met`, `inconclusive` or `invalid`")
    certified_users: Count = Field(description="the number of users that is proven; 0: none")
    at_most_users: Count | None = Field(
        default=None, description="the largest number that the run does not rule out; null: no bound was found"
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="confidence of the certificate"
    )
    limited_by: str | None = Field(default=None, description="what one more user runs into")

    @model_validator(mode="after")
    def _consistent(self) -> Capacity:
        proven = self.status in ("certified", "at_least")
        if proven and self.certified_users < 1:
            raise ValueError(f"status {self.status} needs at least one certified user")
        if self.status == "not_met" and self.certified_users > 0:
            raise ValueError("status not_met contradicts a certified user")
        if proven and self.at_most_users is not None and self.at_most_users < self.certified_users:
            raise ValueError("at_most_users is below certified_users")
        return self


class Samples(Part):
    """A file of raw requests."""

    file: str = Field(description="file name beside the record; it holds the beginning of the digest")
    format: str = Field(description="`parquet`, `jsonl`, ...")
    rows: Count | None = Field(default=None, description="number of requests in it")
    sha256: str | None = Field(default=None, description="SHA-256 of the file")
    bytes: Count | None = Field(default=None, description="size of the file, bytes")


class Problem(Part):
    """Why the run did not finish."""

    kind: str = Field(description="name of the error")
    message: str = Field(description="what happened")
    hint: str = Field(default="", description="what to type next")
    step: str = Field(default="", description="the step that it happened in")
