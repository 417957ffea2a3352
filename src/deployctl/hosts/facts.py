"""What a host is: one POSIX sh script over the session, and the pure reader of its lines. No Python needed there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from deployctl.errors import HostError
from deployctl.units import KIB, MIB

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}


@dataclass(frozen=True)
class Disk:
    """A mounted filesystem: sizes in bytes, ``free_bytes`` as an ordinary user may use it."""

    mount: str
    size_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. ``vram_bytes`` is 0 and ``driver`` empty when no driver answers for it."""

    vendor: str  # "nvidia" | "amd"
    model: str
    vram_bytes: int
    driver: str
    compute_capability: str
    bus_id: str


@dataclass(frozen=True)
class HostFacts:
    """A host as it was found. Sizes are bytes; ``cpu_quota`` is in CPUs, None where nothing limits them."""

    os_id: str
    os_version: str
    arch: str
    kernel: str
    hostname: str
    cpu_model: str
    cpus: int
    cpu_quota: float | None
    cpu_flags: frozenset[str]
    ram_bytes: int
    ram_available_bytes: int
    swap_bytes: int
    disks: tuple[Disk, ...]
    gpus: tuple[GpuFacts, ...]
    gpu_problem: str
    virtualization: str
    systemd: bool
    root_or_sudo: str  # "root" | "sudo" | "sudo-password" | ""
    python: str  # path of an interpreter, or ""
    python_version: str
    selinux_enforcing: bool
    user: str
    home: str
    ollama_path: str
    ollama_version: str
    ollama_running: bool

    def disk_for(self, path: str) -> Disk | None:
        """Return the filesystem that holds the absolute ``path``: the longest mount point that leads to it."""
        holding = [d for d in self.disks if path == d.mount or path.startswith(d.mount.rstrip("/") + "/")]
        return max(holding, key=lambda disk: len(disk.mount), default=None)


def gather(session: Session, *, timeout: float = 30) -> HostFacts:
    """Run the fact script on the host and read what it says; raises HostError when it is no Linux with a POSIX sh."""
    answer = session.run("sh -s", stdin=script(), timeout=timeout)
    try:
        return read(answer.stdout)
    except ValueError as error:
        raise HostError(
            f"{session.target} does not answer like a Linux host: {error}"
            + (f" ({answer.stderr.strip().splitlines()[-1]})" if answer.stderr.strip() else ""),
            hint="deployctl needs a Linux host with a POSIX shell",
        ) from error


@cache
def script() -> str:
    """Return the fact script."""
    return resources.files("deployctl.hosts").joinpath("facts.sh").read_text(encoding="utf-8")


def read(text: str) -> HostFacts:
    """Read the script's output; raises ValueError when it is cut short or lacks CPU or memory."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[a-z_0-9]+", key):
            values.setdefault(key, []).append(value.strip())
    if "facts" not in values or "end" not in values:
        raise ValueError("its facts are incomplete")
    one = {key: found[0] for key, found in values.items()}
    python, _, version = one.get("python", "").partition(" ")
    gpus = _gpus(values)
    return HostFacts(
        os_id=one.get("os_id", ""),
        os_version=one.get("os_version", ""),
        arch=one.get("arch", ""),
        kernel=one.get("kernel", ""),
        hostname=one.get("hostname", ""),
        cpu_model=one.get("cpu_model", ""),
        cpus=_count(one, "cpus"),
        cpu_quota=_quota(values.get("cpu_max", [])),
        cpu_flags=frozenset(one.get("cpu_flags", "").split()),
        ram_bytes=_count(one, "ram_kb") * KIB,
        ram_available_bytes=int(one.get("ram_available_kb", 0)) * KIB,
        swap_bytes=int(one.get("swap_kb", 0)) * KIB,
        disks=tuple(disk for disk in map(_disk, values.get("disk", [])) if disk is not None),
        gpus=gpus,
        gpu_problem=_gpu_problem(gpus, one),
        virtualization="" if one.get("virtualization") == "none" else one.get("virtualization", ""),
        systemd=one.get("systemd") == "1",
        root_or_sudo=one.get("privilege", ""),
        python=python,
        python_version=version,
        selinux_enforcing=one.get("selinux") == "1",
        user=one.get("user", ""),
        home=one.get("home", ""),
        ollama_path=one.get("ollama_path", ""),
        ollama_version=one.get("ollama_version", ""),
        ollama_running=one.get("ollama_running") == "1",
    )


def _count(one: Mapping[str, str], key: str) -> int:
    value = one.get(key, "")
    if not value.isdigit() or int(value) == 0:
        raise ValueError(f"no {key}")
    return int(value)


def _quota(found: list[str]) -> float | None:
    """Read ``quota period`` pairs in microseconds; ``max`` (version 2) and -1 (version 1) mean unlimited."""
    limits = []
    for pair in found:
        quota, _, period = pair.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _disk(value: str) -> Disk | None:
    blocks, free, mount = [*value.split(" ", 2), "", "", ""][:3]
    if not (blocks.isdigit() and free.isdigit() and mount):
        return None
    return Disk(mount=mount, size_bytes=int(blocks) * KIB, free_bytes=int(free) * KIB)


def _gpus(values: Mapping[str, list[str]]) -> tuple[GpuFacts, ...]:
    """Join the bus with the drivers' answers; a card on the bus that no driver names is kept, with no VRAM."""
    found: dict[str, GpuFacts] = {}
    for line in values.get("pci", []):
        bus, vendor, device, kind = [*line.split(), "", "", "", ""][:4]
        # An AMD APU or a board's VGA chip is no accelerator unless a driver says so below.
        if vendor == "0x10de" or (vendor == "0x1002" and kind.startswith(("0x0380", "0x1200"))):
            found[_bus(bus)] = GpuFacts(_VENDORS[vendor], f"{_VENDORS[vendor]} {device}", 0, "", "", bus)
    for line in values.get("nvidia", []):
        bus, vram, driver, capability, name = [*(part.strip() for part in line.split(",", 4)), "", "", "", "", ""][:5]
        if bus and name:
            size = int(vram) * MIB if vram.isdigit() else 0
            found[_bus(bus)] = GpuFacts("nvidia", name, size, driver, capability, bus)
    for line in values.get("amd", []):
        bus, vram, driver, name = [*(part.strip() for part in line.split(",", 3)), "", "", "", ""][:4]
        size = int(vram) if vram.isdigit() else 0
        found[_bus(bus)] = GpuFacts("amd", name or "amd GPU", size, driver or "in-kernel", "", bus)
    return tuple(found[bus] for bus in sorted(found))


def _bus(address: str) -> str:
    """``00000000:65:00.0`` (nvidia-smi) and ``0000:65:00.0`` (sysfs) are one address."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if re.fullmatch(r"[0-9a-f]+", domain) else address.lower()


def _gpu_problem(gpus: tuple[GpuFacts, ...], one: Mapping[str, str]) -> str:
    if "nvidia_error" in one:
        return one["nvidia_error"]
    mute = [gpu.model for gpu in gpus if not gpu.driver]
    return f"no driver answers for {', '.join(mute)}" if mute else ""
