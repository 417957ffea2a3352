"""Look at a host, read-only: can it be reached, what is it, what stands in the way of provisioning."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.catalog.load import load_catalog
from deployctl.events import Emit
from deployctl.hosts.facts import HostFacts
from deployctl.jobs.reach import reach
from deployctl.jobs.sold import missing, surplus, usable_cpus
from deployctl.jobs.wanted import Place, Wanted
from deployctl.resources import Project
from deployctl.units import format_bytes

ROOT_WORDS = {"root": "logged in as root", "sudo": "sudo", "sudo-password": "sudo, with a password", "": "no"}


@dataclass(frozen=True)
class Checked:
    """What was found, in words; ``problems`` stop provisioning, ``warnings`` do not."""

    host: str
    found: dict[str, str]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether provisioning has a chance."""
        return not self.problems


def check_host(wanted: Wanted, *, project: Project, place: Place, emit: Emit) -> Checked:
    """Connect and judge; raises HostError of the kind that tells why a host cannot be reached."""
    catalog = load_catalog(project)
    plan = catalog.plan(wanted.plan) if wanted.plan else None
    with reach(wanted, catalog, place, emit) as reached:
        facts = reached.facts
        found = found_of(facts) | {"host key": reached.session.fingerprint}
        warnings = (*missing(plan, facts), *surplus(plan, facts)) if plan else ()
        problems = problems_of(facts, become=reached.target.become)
        return Checked(str(reached.target), found, problems, warnings)


def found_of(facts: HostFacts) -> dict[str, str]:
    """The facts in words, in the order in which people ask for them."""
    disks = ", ".join(
        f"{disk.mount} {format_bytes(disk.free_bytes)} free of {format_bytes(disk.size_bytes)}" for disk in facts.disks
    )
    gpus = ", ".join(
        f"{gpu.model} ({format_bytes(gpu.vram_bytes)})" if gpu.vram_bytes else gpu.model for gpu in facts.gpus
    )
    return {
        "system": f"{facts.os_id} {facts.os_version}, {facts.arch}, Linux {facts.kernel}",
        "virtual": facts.virtualization or "no",
        "CPU": f"{usable_cpus(facts):g} × {facts.cpu_model or 'unknown'}",
        "memory": f"{format_bytes(facts.ram_bytes)}, {format_bytes(facts.ram_available_bytes)} available",
        "swap": format_bytes(facts.swap_bytes) if facts.swap_bytes else "none",
        "disks": disks or "unknown",
        "GPUs": gpus or "none",
        "services": "systemd" if facts.systemd else "no systemd",
        "root": ROOT_WORDS[facts.root_or_sudo],
        "Python": facts.python or "none",
        "Ollama": facts.ollama_version or ("running" if facts.ollama_running else "none"),
    }


def problems_of(facts: HostFacts, *, become: bool) -> tuple[str, ...]:
    """What provisioning would stumble over."""
    problems = []
    if become and facts.root_or_sudo not in ("root", "sudo"):
        problems.append("neither root nor sudo without a password: provisioning needs one of them")
    if become and not facts.systemd:
        problems.append("no systemd: the service cannot be installed")
    if facts.arch in ("x86_64", "amd64") and facts.cpu_flags and "avx" not in facts.cpu_flags:
        problems.append("the CPU type of this machine hides AVX: inference would crawl (choose CPU type 'host')")
    return tuple(problems)
