"""The bandwidth probe: the real script over real SSH, and what its answers mean."""

import dataclasses
from pathlib import Path

import pytest
from loopback.sshd import Sshd

from deployctl.catalog.load import load_catalog
from deployctl.hosts.facts import gather
from deployctl.hosts.ssh import connect
from deployctl.hosts.target import Target
from deployctl.jobs.hostprobe import HostProbe, probe_host, read_probe
from deployctl.resources import Project
from deployctl.sizing.speed import engine_of, vectors_of


def test_a_host_is_probed_over_ssh_and_without_python_it_says_so(sshd: Sshd) -> None:
    target: Target = sshd.target()
    with connect(target, "refuse") as session:
        facts = gather(session)
        found = probe_host(session, facts, 2, seconds=0.3)
        bare = probe_host(session, dataclasses.replace(facts, python=""), 2, seconds=0.3)
        broken = probe_host(session, dataclasses.replace(facts, python="/bin/false"), 2, seconds=0.3)
    # Any machine that runs this suite reads memory faster than a disk and slower than a supercomputer's node.
    assert found.memory_bandwidth_gb_s is not None
    assert 0.2 < found.memory_bandwidth_gb_s < 2000
    flags = next(
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
    )
    assert found.vectors == vectors_of(frozenset(flags.split()))
    assert bare.memory_bandwidth_gb_s is None
    assert "no Python" in bare.note
    assert broken.memory_bandwidth_gb_s is None
    assert "gave no figure" in broken.note


@pytest.mark.parametrize("said", ["", "Traceback", "-5", "0", "1e9", "9" * 30, "100000000", "9000000000000"])
def test_what_no_memory_reaches_is_no_answer(said: str) -> None:
    assert read_probe(said, "avx2").memory_bandwidth_gb_s is None


def test_the_lesser_of_sold_and_measured_counts_and_the_band_narrows() -> None:
    plan = load_catalog(Project(Path("/nonexistent"))).plan("cpu-32gb")
    assert plan.memory_bandwidth_gb_s == 60
    slow, fast = (HostProbe(rate, "avx2").sharpened(plan) for rate in (30.0, 90.0))
    assert (slow.memory_bandwidth_gb_s, fast.memory_bandwidth_gb_s) == (30, 60)
    assert engine_of(slow).bandwidth == engine_of(plan).bandwidth / 2
    assert engine_of(slow).band < engine_of(plan).band
    assert HostProbe(None, "avx2").sharpened(plan) is plan
    narrow = HostProbe(60.0, "avx").sharpened(plan)
    assert engine_of(narrow).decode_flops == engine_of(plan).decode_flops / 2
