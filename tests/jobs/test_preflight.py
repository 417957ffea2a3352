"""What a host's facts mean: what stops the work, and what is said beforehand."""

from dataclasses import replace

import pytest

from deployctl.hosts.facts import HostFacts, read
from deployctl.jobs.preflight import problems_of, warnings_of

FACTS = (
    "facts=1\narch=x86_64\ncpus=8\ncpu_flags=sse avx avx2\nram_kb=16384000\nsystemd=1\nipv4=1\nnuma_nodes=1\n"
    "stat_begin=0 0 0 900 0 0 0 0 0 0\nstat_end=10 0 0 990 0 0 0 1 0 0\ntime=1000.0\nend=1\n"
)


@pytest.fixture
def facts() -> HostFacts:
    return read(FACTS, now=1001.0)


def test_an_ordinary_host_is_ready_and_nothing_is_said(facts: HostFacts) -> None:
    assert problems_of(facts, become=True) == ()
    assert warnings_of(facts) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"systemd": False}, "no systemd"),
        ({"cpu_flags": frozenset({"sse"})}, "hides AVX"),
        ({"noexec": ("/usr/local",)}, "/usr/local is mounted noexec"),
        ({"ollama_origin": "container", "port_taken": True}, "container holds port 11434"),
    ],
)
def test_what_would_stop_the_work_is_said_before_it(facts: HostFacts, change: dict[str, object], words: str) -> None:
    (problem,) = problems_of(replace(facts, **change), become=True)  # type: ignore[arg-type]
    assert words in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpu_flags": frozenset({"avx"})}, "no AVX2"),
        ({"gpu_problem": "no driver answers for L4"}, "no driver answers for L4; the engine would run on the CPU"),
        ({"steal": 0.25}, "25% of the CPU time is stolen now"),
        ({"steal": None, "steal_since_boot": 0.1}, "10% of the CPU time is stolen since boot"),
        ({"numa_nodes": 2}, "2 NUMA nodes"),
        ({"ipv4": False}, "no way out over IPv4"),
        ({"time_offset_s": -3600.0}, "-3600 s off ours"),
        ({"noexec": ("/tmp",)}, "/tmp is mounted noexec"),
        ({"selinux_enforcing": True}, "SELinux is enforcing"),
        ({"ollama_origin": "script", "ollama_version": "0.5.1"}, "an Ollama 0.5.1 is there already, installed by the"),
        ({"ollama_origin": "package ollama", "ollama_version": "0.6"}, "installed (package ollama)"),
    ],
)
def test_what_will_be_felt_is_said(facts: HostFacts, change: dict[str, object], words: str) -> None:
    changed = replace(facts, **change)  # type: ignore[arg-type]
    assert problems_of(changed, become=True) == ()
    (warning,) = warnings_of(changed)
    assert words in warning


def test_an_ollama_of_our_own_is_no_news(facts: HostFacts) -> None:
    assert warnings_of(replace(facts, ollama_origin="deployctl", ollama_version="0.32.15", port_taken=True)) == ()
