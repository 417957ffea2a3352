"""When the host was not the plan: reasons that invalidate a probe, from a window of telemetry. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.telemetry.proc import HostWindow
from deployctl.units import MIB, format_bytes


@dataclass(frozen=True)
class Limits:
    """What a host may do and still count as the plan. Shares are fractions of its CPU time.

    A virtual machine always loses a little time to its neighbours; above 5 % latencies are theirs. Reading back from
    swap stalls inference at once, while a few pages per second are some idle daemon waking up. With less than
    ``ram_available_min`` of the RAM left, the kernel starts to evict what it needs.
    """

    steal_share: float = 0.05
    swap_in_pages_per_s: float = 10.0
    ram_available_min: float = 0.02
    ram_available_min_bytes: int = 64 * MIB
    temperature_c: float = 95.0
    largest_gap_s: float = 15.0


DEFAULT_LIMITS = Limits()


def judge(window: HostWindow, limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Return the reasons why what was measured in ``window`` says nothing about the plan; empty when it does."""
    reasons = []
    if window.largest_gap_s > limits.largest_gap_s:
        reasons.append(f"the host was not watched for {window.largest_gap_s:.0f} s of {window.seconds:.0f} s")
    if window.steal_share is not None and window.steal_share > limits.steal_share:
        reasons.append(f"other machines took {window.steal_share:.1%} of the host's CPU time (steal)")
    if window.swap_in_pages is not None and window.covered_s > 0:
        rate = window.swap_in_pages / window.covered_s
        if rate > limits.swap_in_pages_per_s:
            reasons.append(f"the host read {rate:.0f} pages/s back from swap")
    if window.oom_kills:
        reasons.append("the kernel killed a process for want of memory")
    if window.ram_available_min_bytes is not None and window.ram_bytes is not None:
        floor = max(limits.ram_available_min * window.ram_bytes, limits.ram_available_min_bytes)
        if window.ram_available_min_bytes < floor:
            reasons.append(f"only {format_bytes(window.ram_available_min_bytes)} of RAM were available on the host")
    if window.throttle_events:
        reasons.append("the host's CPU was throttled for heat")
    elif window.temperature_max_c is not None and window.temperature_max_c > limits.temperature_c:
        reasons.append(f"the host's CPU was at {window.temperature_max_c:.0f} °C")
    return tuple(reasons)
