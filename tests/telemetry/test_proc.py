"""The kernel's counters, from recorded blocks of other machines; figures by hand from proc(5)'s definitions."""

import itertools

import pytest

from deployctl.telemetry.proc import between, parse

# Two seconds apart on a 4-CPU guest (100 ticks per second and CPU): of 800 ticks 160 were stolen, 400 were busy.
BEFORE = """@ 1000.00
cpu  10000 0 5000 80000 1000 0 200 3000 0 0
MemTotal:        8000000 kB
MemAvailable:    4000000 kB
SwapTotal:       1000000 kB
SwapFree:         900000 kB
pswpin 500
pswpout 700
oom_kill 1
load 3.10 2.00 1.00
package_throttle_count 7
temp 61000
.
"""
AFTER = """@ 1002.00
cpu  10300 0 5080 80220 1020 0 220 3160 0 0
MemTotal:        8000000 kB
MemAvailable:    3000000 kB
SwapTotal:       1000000 kB
SwapFree:         899000 kB
pswpin 540
pswpout 700
oom_kill 2
load 4.20 2.10 1.00
package_throttle_count 9
temp 64500
.
"""


def samples(*blocks, start=50.0, every=2.0):
    lines = "".join(blocks).splitlines()
    return list(parse(lines, itertools.count(start, every)))


def test_two_recorded_blocks_give_the_shares_computed_by_hand():
    window = between(samples(BEFORE, AFTER), 50.0, 52.0)
    assert window.steal_share == pytest.approx(160 / 800)
    assert window.cpu_share == pytest.approx((300 + 80 + 20 + 160) / 800)
    assert window.iowait_share == pytest.approx(20 / 800)
    assert (window.swap_in_pages, window.swap_out_pages, window.oom_kills) == (40, 0, 1)
    assert window.ram_available_min_bytes == 3_000_000 * 1024
    assert window.swap_used_max_bytes == 101_000 * 1024
    assert (window.load_1m_max, window.throttle_events, window.temperature_max_c) == (4.2, 2, 64.5)
    assert (window.samples, window.covered_s, window.largest_gap_s) == (2, 2.0, 2.0)


def test_guest_time_is_not_counted_twice():
    later = AFTER.replace("3160 0 0", "3160 300 0")  # guest ticks are part of user (proc(5))
    assert between(samples(BEFORE, later), 50.0, 52.0).steal_share == pytest.approx(0.2)


def test_a_window_uses_the_samples_around_it():
    window = between(samples(BEFORE, AFTER), 50.5, 51.5)
    assert window.samples == 2
    assert window.covered_s == pytest.approx(1.0)
    assert window.steal_share == pytest.approx(0.2)


def test_a_stretch_without_samples_is_a_gap_at_the_start_in_the_middle_and_at_the_end():
    found = samples(BEFORE, AFTER)
    assert between(found, 20.0, 52.0).largest_gap_s == pytest.approx(30.0)
    assert between(found, 50.0, 92.0).largest_gap_s == pytest.approx(40.0)
    assert between(samples(BEFORE, AFTER, every=25.0), 50.0, 75.0).largest_gap_s == pytest.approx(25.0)


def test_fewer_than_two_samples_say_nothing():
    window = between(samples(BEFORE), 50.0, 52.0)
    assert window.steal_share is None
    assert window.largest_gap_s == pytest.approx(2.0)
    assert between([], 50.0, 52.0).samples == 0


def test_a_torn_block_is_dropped_and_the_next_one_read():
    torn = "@ 999.0\ncpu  10000 0 5000\n@ 999.5\nMemTotal: x kB\n.\n"
    assert [sample.uptime_s for sample in samples(torn, BEFORE)] == [1000.0]


def test_a_kernel_without_swap_counters_or_sensors_leaves_them_unknown():
    def bare(block):
        return "".join(
            line + "\n" for line in block.splitlines() if not line.startswith(("psw", "oom", "package", "temp"))
        )

    window = between(samples(bare(BEFORE), bare(AFTER)), 50.0, 52.0)
    assert window.steal_share == pytest.approx(0.2)
    assert window.swap_in_pages is None
    assert window.throttle_events is None
    assert window.temperature_max_c is None


def test_counters_that_restart_after_a_reboot_do_not_go_negative():
    window = between(samples(AFTER, BEFORE), 50.0, 52.0)
    assert window.swap_in_pages == 0
    assert window.steal_share is None or window.steal_share >= 0
