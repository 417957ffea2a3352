"""What was sold against what is there."""

from dataclasses import replace

import pytest

from deployctl.catalog.plans import Plan
from deployctl.hosts.facts import HostFacts, read
from deployctl.jobs.sold import missing, surplus, usable_cpus
from deployctl.units import GIB

# What hosts.facts prints for an 8-vCPU, 16 GB virtual machine, reduced to what is compared.
FACTS = "facts=1\ncpus=8\nram_kb=16384000\nend=1\n"
PLAN = Plan(id="p", vcpus=8, ram_gb=16, disk_gb=100)


@pytest.fixture
def facts() -> HostFacts:
    return read(FACTS)


def test_a_host_as_sold_differs_in_nothing(facts: HostFacts) -> None:
    # 16,384,000 KiB are 15.6 GiB: the kernel keeps the rest, and that is no complaint.
    assert missing(PLAN, facts) == ()
    assert surplus(PLAN, facts) == ()


def test_fewer_cpus_than_sold_are_named_as_people_say_it(facts: HostFacts) -> None:
    assert missing(PLAN, replace(facts, cpus=4)) == ("plan says 8 vCPUs, host has 4",)


def test_a_quota_counts_as_the_cpus_that_it_leaves(facts: HostFacts) -> None:
    limited = replace(facts, cpu_quota=2.5)
    assert usable_cpus(limited) == 2.5
    assert missing(PLAN, limited) == ("plan says 8 vCPUs, host has 2.5",)


def test_less_memory_than_sold_is_named(facts: HostFacts) -> None:
    assert missing(PLAN, replace(facts, ram_bytes=8 * GIB)) == ("plan says 16 GB of RAM, host has 8.0",)


def test_a_missing_gpu_is_named(facts: HostFacts) -> None:
    plan = Plan.model_validate({**PLAN.model_dump(), "gpus": [{"model": "L4", "count": 2, "vram_gb": 24}]})
    assert missing(plan, facts) == ("plan says 2 GPUs, host has 0",)


def test_a_smaller_disk_and_a_card_with_less_memory_are_named(facts: HostFacts) -> None:
    # A data disk counts: 40 GB and 70 GB are the 100 GB that were sold.
    whole = read(FACTS.replace("end=1", "disk=39062500 1 /\ndisk=68359375 1 /srv\nend=1"))
    assert missing(PLAN, whole) == ()
    small = read(FACTS.replace("end=1", "disk=39062500 1 /\nend=1"))
    assert missing(PLAN, small) == ("plan says 100 GB of disk, host has 40",)
    plan = Plan.model_validate({**PLAN.model_dump(), "gpus": [{"model": "L4", "count": 1, "vram_gb": 24}]})
    card = "pci=0000:00:04.0 0x10de 0x1eb8 0x030200\nnvidia=0000:00:04.0, 15360, 550.54.15, 7.5, Tesla T4\nend=1"
    assert missing(plan, read(FACTS.replace("end=1", card))) == ("plan says 24 GB of VRAM on each GPU, host has 15.0",)


def test_a_host_larger_than_the_plan_would_promise_too_much(facts: HostFacts) -> None:
    assert surplus(PLAN, replace(facts, cpus=16)) == ("host has 16 CPUs, plan sells 8",)
