"""What sizing works with and answers: the capacity of a machine, the bytes of every part, and the fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from deployctl.catalog.models import ModelEntry
from deployctl.catalog.plans import Plan

KvType = Literal["f16", "q8_0", "q4_0"]


@dataclass(frozen=True)
class Capacity:
    """What a machine offers, in bytes: main memory, memory of each GPU, free disk (None: not known); and its CPUs."""

    ram_bytes: int
    vram_bytes: tuple[int, ...] = ()
    disk_bytes: int | None = None
    cpus: int = 1
    name: str = "this machine"
    plan: str = ""

    @classmethod
    def of_plan(cls, plan: Plan) -> Capacity:
        """Return what the plan's sales page says; a probed host is more exact."""
        return cls(plan.ram_bytes, plan.vram_bytes, plan.disk_bytes, plan.vcpus, f"plan {plan.id}", plan.id)

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.vram_bytes)


@dataclass(frozen=True)
class Parts:
    """Bytes of each part of a deployment. ``total`` is their sum and ``available`` what the machine has.

    On a GPU machine they count video memory, unless the model is split between GPU and CPU; then both memories count.
    """

    weights: int
    kv: int
    compute: int
    prompt_cache: int
    runtime: int
    os_reserve: int
    available: int

    @property
    def total(self) -> int:
        """Sum of all parts in bytes."""
        return self.weights + self.kv + self.compute + self.prompt_cache + self.runtime + self.os_reserve

    def to_dict(self) -> dict[str, int]:
        """Return the parts by the names of the JSON contract, in bytes."""
        return {
            "weights": self.weights,
            "kv": self.kv,
            "compute": self.compute,
            "prompt_cache": self.prompt_cache,
            "runtime": self.runtime,
            "os_reserve": self.os_reserve,
            "total": self.total,
            "available": self.available,
        }


@dataclass(frozen=True)
class Fit:
    """A variant on a machine: its parts, slots and context (tokens per slot), and how many layers a GPU holds.

    ``reference`` is what to pull. ``gpu_layers`` counts the output layer too, as llama.cpp does: all are
    ``layers + 1``; 0 without a GPU. ``reasons`` say why this variant, these slots and this context.
    """

    model: ModelEntry
    variant: str
    reference: str
    bytes: Parts
    slots: int
    context: int
    kv_type: KvType
    gpu_layers: int
    fits: bool
    reasons: tuple[str, ...] = ()

    @property
    def fully_on_gpu(self) -> bool:
        """Whether every layer is on a GPU."""
        return self.gpu_layers > self.model.layers
