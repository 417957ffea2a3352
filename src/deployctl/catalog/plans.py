"""Plans: what is sold, with its resources, its price and the promises of its sales page."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from deployctl.catalog.base import Entry

GIB = 1024**3
HOURS_PER_MONTH = 730.0


class Gpu(Entry):
    """``count`` equal GPUs. ``vram_gb`` is per GPU, as sold; bandwidth in GB/s (10^9) per GPU."""

    model: str
    count: int = Field(default=1, ge=1, le=16)
    vram_gb: float = Field(gt=0, le=1024)
    memory_bandwidth_gb_s: float | None = Field(default=None, gt=0)


class Price(Entry):
    """What the plan costs."""

    amount: float = Field(ge=0)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    per: Literal["hour", "month"] = "month"


class Promise(Entry):
    """What is promised for one model: users at once, tokens per second of one stream, seconds for 200 tokens."""

    users: int | None = Field(default=None, ge=1)
    tokens_per_s: float | None = Field(default=None, gt=0)
    seconds_for_200_tokens: float | None = Field(default=None, gt=0)
    slo: str = "chat"


class Plan(Entry):
    """One plan. Sold gigabytes of memory are binary in practice (a "24 GB" card reports 24,564 MiB): GB = GiB here.

    ``memory_bandwidth_gb_s`` is what the vCPUs reach together, in GB/s; ``cpu_class`` names a class of processors
    where no figure is known. ``promises`` maps an Ollama reference to what is promised for it.
    """

    id: str
    title: str = ""
    vcpus: int = Field(ge=1, le=4096)
    ram_gb: float = Field(gt=0, le=65536)
    disk_gb: float = Field(gt=0)
    cpu_class: str | None = None
    memory_bandwidth_gb_s: float | None = Field(default=None, gt=0)
    gpus: tuple[Gpu, ...] = ()
    price: Price | None = None
    promises: dict[str, Promise] = Field(default_factory=dict)
    slo: str = "chat"
    workload: str = "chat"

    @property
    def ram_bytes(self) -> int:
        """Main memory in bytes."""
        return round(self.ram_gb * GIB)

    @property
    def disk_bytes(self) -> int:
        """Disk in bytes; disks are sold in decimal gigabytes."""
        return round(self.disk_gb * 1e9)

    @property
    def vram_bytes(self) -> tuple[int, ...]:
        """Memory of each GPU in bytes; empty without GPUs."""
        return tuple(round(gpu.vram_gb * GIB) for gpu in self.gpus for _ in range(gpu.count))


def monthly(plan: Plan) -> float:
    """Return the plan's price per month in its currency; 0 without a price."""
    if plan.price is None:
        return 0.0
    return plan.price.amount * (HOURS_PER_MONTH if plan.price.per == "hour" else 1.0)


class ProbedPlan(Plan):
    """A plan as a host embodies it: ``memory_bandwidth_gb_s`` was measured there, ``vectors`` read from its flags."""

    vectors: str = "avx2"
