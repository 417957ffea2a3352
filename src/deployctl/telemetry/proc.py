"""Read the kernel's counters as the sampling script prints them, and say what happened between two of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from deployctl.units import KIB

# One line per source and sample, and few processes: a sampler must not load the host that it watches.
SCRIPT = r"""
LC_ALL=C; export LC_ALL
while :; do
  echo "@ $(cut -d' ' -f1 /proc/uptime)"
  sed -n -e '/^cpu /p' -e '/^MemTotal:/p' -e '/^MemAvailable:/p' -e '/^SwapTotal:/p' -e '/^SwapFree:/p' \
    -e '/^pswpin /p' -e '/^pswpout /p' -e '/^oom_kill /p' /proc/stat /proc/meminfo /proc/vmstat
  sed -n '/^cpu MHz/{s/^cpu MHz[^:]*:/mhz/p;q}' /proc/cpuinfo
  echo "load $(cut -d' ' -f1-3 /proc/loadavg)"
  for file in /sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count \
    /sys/class/thermal/thermal_zone0/temp; do
    [ -r "$file" ] && echo "${file##*/} $(cat "$file" 2>/dev/null)"
  done
  echo .
  sleep INTERVAL || exit 1
done
"""


@dataclass(frozen=True)
class Sample:
    """The host at one moment. ``at_s`` is our monotonic clock, ``uptime_s`` the host's; CPU times are in ticks.

    ``cpu`` holds user, nice, system, idle, iowait, irq, softirq, steal (proc(5), /proc/stat; guest time is part of
    user). Pages are the kernel's; None where the kernel does not tell.
    """

    at_s: float
    uptime_s: float
    cpu: tuple[int, ...]
    ram_bytes: int
    ram_available_bytes: int
    swap_used_bytes: int
    swap_in_pages: int | None
    swap_out_pages: int | None
    oom_kills: int | None
    load_1m: float
    throttle_count: int | None
    temperature_c: float | None
    cpu_mhz: float | None = None  # of the first CPU


@dataclass(frozen=True)
class HostWindow:
    """The host between two times. Shares are fractions of all its CPUs' time; counts are increases.

    ``covered_s`` of ``seconds`` lie between samples; ``largest_gap_s`` is the longest stretch without one. With fewer
    than two samples every share is None.
    """

    seconds: float
    covered_s: float
    largest_gap_s: float
    samples: int
    steal_share: float | None = None
    cpu_share: float | None = None
    iowait_share: float | None = None
    swap_in_pages: int | None = None
    swap_out_pages: int | None = None
    oom_kills: int | None = None
    ram_bytes: int | None = None
    ram_available_min_bytes: int | None = None
    swap_used_max_bytes: int | None = None
    load_1m_max: float | None = None
    throttle_events: int | None = None
    temperature_max_c: float | None = None
    cpu_mhz_mean: float | None = None


def script(interval_s: float) -> str:
    """Return the endless sampling script; ``interval_s`` is the pause between samples."""
    return SCRIPT.replace("INTERVAL", f"{interval_s:g}")


def parse(lines: Iterable[str], clock: Iterator[float]) -> Iterator[Sample]:
    """Yield a Sample per block of lines; ``clock`` gives the time at which each block began. Torn ones are dropped."""
    block: dict[str, list[str]] | None = None
    at_s = 0.0
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] == "@":
            block, at_s = {"uptime": words[1:]}, next(clock)
        elif words[0] == "." and block is not None:
            sample = _sample(at_s, block)
            block = None
            if sample is not None:
                yield sample
        elif block is not None:
            block[words[0].rstrip(":")] = words[1:]


def between(samples: Sequence[Sample], begin_s: float, end_s: float) -> HostWindow:
    """Say what the host did from ``begin_s`` to ``end_s`` (our clock), from the samples that bracket that time best.

    The counters are read at the last sample before the window and the first after it, where there are such: what
    happened at its edges is not lost, and at most one sampling interval on either side is counted along.
    """
    inside = [sample for sample in samples if begin_s <= sample.at_s <= end_s]
    before = [sample for sample in samples if sample.at_s < begin_s][-1:]
    after = [sample for sample in samples if sample.at_s > end_s][:1]
    used = [*before, *inside, *after]
    seconds = max(0.0, end_s - begin_s)
    edges = [begin_s, *(min(max(sample.at_s, begin_s), end_s) for sample in used), end_s]
    gap = max((later - earlier for earlier, later in pairwise(edges)), default=0.0)
    if len(used) < 2:
        return HostWindow(seconds=seconds, covered_s=0.0, largest_gap_s=seconds, samples=len(used))
    first, last = used[0], used[-1]
    ticks = [max(0, later - earlier) for earlier, later in zip(first.cpu, last.cpu, strict=True)]
    total = sum(ticks)
    idle, iowait, steal = ticks[3], ticks[4], ticks[7]
    return HostWindow(
        seconds=seconds,
        covered_s=max(0.0, min(last.at_s, end_s) - max(first.at_s, begin_s)),
        largest_gap_s=gap,
        samples=len(used),
        steal_share=steal / total if total else None,
        cpu_share=(total - idle - iowait) / total if total else None,
        iowait_share=iowait / total if total else None,
        swap_in_pages=_increase(first.swap_in_pages, last.swap_in_pages),
        swap_out_pages=_increase(first.swap_out_pages, last.swap_out_pages),
        oom_kills=_increase(first.oom_kills, last.oom_kills),
        ram_bytes=last.ram_bytes,
        ram_available_min_bytes=min(sample.ram_available_bytes for sample in used),
        swap_used_max_bytes=max(sample.swap_used_bytes for sample in used),
        load_1m_max=max(sample.load_1m for sample in used),
        throttle_events=_increase(first.throttle_count, last.throttle_count),
        temperature_max_c=max((s.temperature_c for s in used if s.temperature_c is not None), default=None),
        cpu_mhz_mean=_mean([sample.cpu_mhz for sample in used if sample.cpu_mhz is not None]),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _increase(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else max(0, last - first)


def _sample(at_s: float, block: dict[str, list[str]]) -> Sample | None:
    try:
        cpu = tuple(int(word) for word in block["cpu"][:8])
        if len(cpu) != 8:
            return None
        temperature = _whole(block, "temp")
        return Sample(
            at_s=at_s,
            uptime_s=float(block["uptime"][0]),
            cpu=cpu,
            ram_bytes=int(block["MemTotal"][0]) * KIB,
            ram_available_bytes=int(block["MemAvailable"][0]) * KIB,
            swap_used_bytes=(int(block["SwapTotal"][0]) - int(block["SwapFree"][0])) * KIB,
            swap_in_pages=_whole(block, "pswpin"),
            swap_out_pages=_whole(block, "pswpout"),
            oom_kills=_whole(block, "oom_kill"),
            load_1m=float(block["load"][0]),
            throttle_count=_whole(block, "package_throttle_count"),
            temperature_c=None if temperature is None else temperature / 1000,  # the kernel gives millidegrees
            cpu_mhz=float(block["mhz"][0]) if block.get("mhz") else None,
        )
    except (KeyError, ValueError, IndexError):
        return None


def _whole(block: dict[str, list[str]], key: str) -> int | None:
    words = block.get(key)
    return int(words[0]) if words and re.fullmatch(r"-?\d+", words[0]) else None
