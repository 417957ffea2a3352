"""Sampling a real host over real SSH."""

import os
import subprocess
import time

import pytest

from deployctl.hosts.ssh import connect
from deployctl.telemetry.gates import judge
from deployctl.telemetry.sampler import Sampler


def wait_for(condition):
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)


def test_samples_of_this_machine_agree_with_its_own_kernel(sshd):
    with connect(sshd.target(), "refuse") as session:
        before = time.monotonic()
        with Sampler(session, interval_s=0.1) as sampler:
            wait_for(lambda: len(sampler.samples) >= 4)
            after = time.monotonic()
        window = sampler.window(before, after)
    assert window.ram_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < window.ram_available_min_bytes < window.ram_bytes
    assert all(0 <= share <= 1 for share in (window.steal_share, window.cpu_share, window.iowait_share))
    assert sampler.samples == tuple(sorted(sampler.samples, key=lambda sample: sample.at_s))
    assert sampler.problem == ""


def test_the_loop_on_the_host_ends_with_the_sampler(sshd):
    with connect(sshd.target(), "refuse") as session:
        with Sampler(session, interval_s=0.123) as sampler:
            wait_for(lambda: sampler.samples)
            assert loops() == 1
        wait_for(lambda: loops() == 0)
        assert session.run("true").rc == 0, "the session itself lives on"


def test_a_host_that_vanishes_leaves_a_gap_that_invalidates(sshd):
    with connect(sshd.target(), "refuse") as session, Sampler(session, interval_s=0.1) as sampler:
        wait_for(lambda: len(sampler.samples) >= 2)
        sshd.stop()
        wait_for(lambda: sampler.problem)
        now = time.monotonic()
        assert "broke" in sampler.problem
        assert "not watched" in judge(sampler.window(now - 1, now + 60))[0]


def loops():
    # The pause is the loop's mark: no other test has one of 0.123 s.
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return sum("sleep 0.123" in line and "/proc/uptime" in line for line in listing.splitlines()) or (
        listing.count("sleep 0.123")
    )


@pytest.fixture(autouse=True)
def no_loop_is_left_over():
    yield
    wait_for(lambda: loops() == 0)
