"""What was sold against what is there. Pure: the plan's figures and the host's facts go in, sentences come out."""

from __future__ import annotations

from deployctl.catalog.plans import Plan
from deployctl.hosts.facts import HostFacts
from deployctl.units import GIB

# A kernel keeps part of the memory for itself: MemTotal of a 32 GiB machine reads 31.2 GiB or so.
RAM_SHORT = 0.93
# Filesystems take some, a system image's partitions a little more.
DISK_SHORT = 0.9
# More than this much more than was sold, and a number measured here says nothing about the plan.
TOO_MUCH = 1.25


def missing(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """What the plan sells and the host does not have."""
    found = []
    cpus = usable_cpus(facts)
    if cpus < plan.vcpus:
        found.append(f"plan says {plan.vcpus} vCPUs, host has {cpus:g}")
    if facts.ram_bytes < RAM_SHORT * plan.ram_bytes:
        found.append(f"plan says {plan.ram_gb:g} GB of RAM, host has {facts.ram_bytes / GIB:.1f}")
    root = facts.disk_for("/")
    # The whole of the machine's disks may count: a data disk is often a mount of its own.
    disks = sum({disk.mount: disk.size_bytes for disk in facts.disks}.values())
    if root is not None and disks < DISK_SHORT * plan.disk_bytes:
        found.append(f"plan says {plan.disk_gb:g} GB of disk, host has {disks / 1e9:.0f}")
    wanted = sum(gpu.count for gpu in plan.gpus)
    if len(facts.gpus) < wanted:
        found.append(f"plan says {wanted} GPU{'s' if wanted > 1 else ''}, host has {len(facts.gpus)}")
    else:
        sizes = sorted((gpu.vram_bytes for gpu in facts.gpus if gpu.vram_bytes), reverse=True)
        for sold, there in zip(sorted(plan.vram_bytes, reverse=True), sizes, strict=False):
            if there < RAM_SHORT * sold:
                found.append(f"plan says {sold / GIB:g} GB of VRAM on each GPU, host has {there / GIB:.1f}")
                break
    return tuple(found)


def surplus(plan: Plan, facts: HostFacts) -> tuple[str, ...]:
    """What the host has and the plan does not sell: a number measured with it would promise too much."""
    found = []
    cpus = usable_cpus(facts)
    if cpus > TOO_MUCH * plan.vcpus:
        found.append(f"host has {cpus:g} CPUs, plan sells {plan.vcpus}")
    if len(facts.gpus) > sum(gpu.count for gpu in plan.gpus):
        found.append(f"host has {len(facts.gpus)} GPUs, plan sells {sum(gpu.count for gpu in plan.gpus)}")
    return tuple(found)


def usable_cpus(facts: HostFacts) -> float:
    """CPUs online, or fewer where a quota allows less time than that."""
    return min(facts.cpus, facts.cpu_quota) if facts.cpu_quota else facts.cpus
