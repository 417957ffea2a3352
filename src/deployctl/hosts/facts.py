"""What a host is: one POSIX sh script over the session, and the pure reader of its lines. No Python needed there."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from deployctl.errors import HostError
from deployctl.hosts.gpus import GpuFacts as GpuFacts
from deployctl.hosts.gpus import gpu_problem, read_gpus
from deployctl.resources import shipped_root
from deployctl.units import KIB

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session


@dataclass(frozen=True)
class Disk:
    """A mounted filesystem: sizes in bytes, ``free_bytes`` as an ordinary user may use it."""

    mount: str
    size_bytes: int
    free_bytes: int


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
    ollama_origin: str = ""  # "deployctl" | "script" | "package NAME" | "snap" | "container" | "by hand" | ""
    port_taken: bool = False  # somebody listens on Ollama's port
    numa_nodes: int = 1
    noexec: tuple[str, ...] = ()  # mount points
    steal: float | None = None  # share of CPU time that a hypervisor took while the facts were read, 0 to 1
    steal_since_boot: float | None = None
    ipv4: bool = True  # whether there is a default route
    ipv6: bool = False
    time_offset_s: float | None = None  # how far the host's clock is ahead of ours
    ntp: bool | None = None
    nouveau: bool = False
    secure_boot: bool = False

    def disk_for(self, path: str) -> Disk | None:
        """Return the filesystem that holds the absolute ``path``: the longest mount point that leads to it."""
        holding = [d for d in self.disks if path == d.mount or path.startswith(d.mount.rstrip("/") + "/")]
        return max(holding, key=lambda disk: len(disk.mount), default=None)


def gather(session: Session, *, timeout: float = 30) -> HostFacts:
    """Run the fact script on the host and read what it says; raises HostError when it is no Linux with a POSIX sh."""
    began = time.time()
    answer = session.run("sh -s", stdin=script(), timeout=timeout)
    took = time.time() - began
    try:
        # The host looks at its clock when it begins; that was, at the most, `took` ago.
        return read(answer.stdout, now=began + min(took, 0.2) / 2)
    except ValueError as error:
        raise HostError(
            f"{session.target} does not answer like a Linux host: {error}"
            + (f" ({answer.stderr.strip().splitlines()[-1]})" if answer.stderr.strip() else ""),
            hint="deployctl needs a Linux host with a POSIX shell",
        ) from error


@cache
def script() -> str:
    """Return the fact script; what it asks of GPUs is a file that the role `bootstrap` has, too."""
    text = resources.files("deployctl.hosts").joinpath("facts.sh").read_text(encoding="utf-8")
    gpus = (shipped_root() / "playbooks" / "roles" / "bootstrap" / "files" / "gpu.sh").read_text(encoding="utf-8")
    return text.replace("# @gpu.sh\n", gpus)


def read(text: str, *, now: float | None = None) -> HostFacts:
    """Read the script's output; raises ValueError when it is cut short or lacks CPU or memory.

    ``now`` is the time (seconds since the epoch) at which the host said its own.
    """
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[a-z_0-9]+", key):
            values.setdefault(key, []).append(value.strip())
    if "facts" not in values or "end" not in values:
        raise ValueError("its facts are incomplete")
    one = {key: found[0] for key, found in values.items()}
    python, _, version = one.get("python", "").partition(" ")
    gpus = read_gpus(values)
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
        gpu_problem=gpu_problem(gpus, one),
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
        ollama_origin="container" if "ollama_container" in one else one.get("ollama_origin", ""),
        port_taken=one.get("port_taken") == "1",
        numa_nodes=max(1, int(one.get("numa_nodes") or 1)),
        noexec=tuple(values.get("noexec", ())),
        steal=_steal(one.get("stat_begin", ""), one.get("stat_end", "")),
        steal_since_boot=_steal("", one.get("stat_end", "")),
        ipv4=one.get("ipv4") == "1",
        ipv6=one.get("ipv6") == "1",
        time_offset_s=_offset(one.get("time", ""), now),
        ntp={"yes": True, "no": False}.get(one.get("ntp", "")),
        nouveau=one.get("nouveau") == "1",
        secure_boot=one.get("secure_boot") == "1",
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


def _steal(begin: str, end: str) -> float | None:
    """The share of stolen time between two lines of /proc/stat (proc(5): steal is the eighth figure)."""
    old = [int(word) for word in begin.split()[:8]] or [0] * 8
    new = [int(word) for word in end.split()[:8]]
    if len(new) < 8 or len(old) < 8:
        return None
    passed = sum(new) - sum(old)
    return (new[7] - old[7]) / passed if passed > 0 else None


def _offset(said: str, now: float | None) -> float | None:
    try:
        return float(said) - now if now is not None else None
    except ValueError:  # a date without %N
        return None


def _disk(value: str) -> Disk | None:
    blocks, free, mount = [*value.split(" ", 2), "", "", ""][:3]
    if not (blocks.isdigit() and free.isdigit() and mount):
        return None
    return Disk(mount=mount, size_bytes=int(blocks) * KIB, free_bytes=int(free) * KIB)
