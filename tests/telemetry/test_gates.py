"""Gates at their limits: what invalidates a probe, and what every healthy host does all day."""

import pytest

from deployctl.telemetry.gates import Limits, judge
from deployctl.telemetry.proc import HostWindow

GIB = 1024**3


def window(**changes):
    healthy = {
        "seconds": 60.0,
        "covered_s": 60.0,
        "largest_gap_s": 2.1,
        "samples": 30,
        "steal_share": 0.01,
        "cpu_share": 0.97,
        "iowait_share": 0.0,
        "swap_in_pages": 12,
        "swap_out_pages": 0,
        "oom_kills": 0,
        "ram_bytes": 32 * GIB,
        "ram_available_min_bytes": 4 * GIB,
        "load_1m_max": 9.0,
        "throttle_events": 0,
        "temperature_max_c": 71.0,
    }
    return HostWindow(**(healthy | changes))


def test_a_busy_healthy_host_is_valid():
    assert judge(window()) == ()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"steal_share": 0.0501}, "steal"),
        ({"swap_in_pages": 601}, "swap"),
        ({"oom_kills": 1}, "memory"),
        ({"ram_available_min_bytes": int(0.0199 * 32 * GIB)}, "RAM"),
        ({"throttle_events": 1}, "throttled"),
        ({"temperature_max_c": 96.0}, "96 °C"),
        ({"largest_gap_s": 15.1}, "not watched"),
    ],
)
def test_each_gate_fires_just_beyond_its_limit_and_names_its_reason(changes, word):
    (reason,) = judge(window(**changes))
    assert word in reason


@pytest.mark.parametrize(
    "changes",
    [
        {"steal_share": 0.05},
        {"swap_in_pages": 600},
        {"ram_available_min_bytes": int(0.0201 * 32 * GIB)},
        {"temperature_max_c": 95.0},
        {"largest_gap_s": 15.0},
    ],
)
def test_each_gate_is_silent_at_its_limit(changes):
    assert judge(window(**changes)) == ()


def test_what_the_kernel_does_not_tell_invalidates_nothing():
    unknown = dict.fromkeys(("steal_share", "swap_in_pages", "oom_kills", "throttle_events", "temperature_max_c"))
    assert judge(window(**unknown)) == ()


def test_limits_are_the_callers_to_set():
    assert judge(window(steal_share=0.03), Limits(steal_share=0.02))


def test_two_troubles_are_two_reasons():
    assert len(judge(window(steal_share=0.5, oom_kills=2))) == 2
