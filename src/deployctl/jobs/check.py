"""Look at a host, read-only: can it be reached, what is it, what stands in the way of provisioning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from deployctl.catalog.load import load_catalog
from deployctl.errors import HostError
from deployctl.events import Emit
from deployctl.hosts.clients import try_openssh
from deployctl.hosts.facts import HostFacts
from deployctl.hosts.privilege import ensure_root
from deployctl.jobs.preflight import models_warning, problems_of, warnings_of
from deployctl.jobs.reach import at_host, reach
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
    if wanted.plan:
        catalog.plan(wanted.plan)  # a name that is wrong is told before anybody is contacted
    with reach(wanted, catalog, place, emit, root=False) as reached:
        sold = wanted.plan or (reached.entry.plan if reached.entry else None)
        plan = catalog.plan(sold) if sold else None
        facts, target = reached.facts, reached.target
        found = found_of(facts) | {"host key": reached.session.fingerprint}
        if target.via is not None:
            found["reached by"] = " → ".join(str(hop) for hop in target.chain)
        warnings = (*missing(plan, facts), *surplus(plan, facts)) if plan else ()
        warnings += warnings_of(facts)
        warnings += models_warning(facts, at_host(wanted, reached).models_dir)
        problems = problems_of(facts, become=target.become)
        # The same clients, keys and passwords that the work itself will use.
        problems += _refused(partial(ensure_root, reached.session, facts, place.ask_secret))
        problems += _refused(partial(try_openssh, target))
        return Checked(str(target), found, problems, warnings)


def _refused(attempt: Callable[[], None]) -> tuple[str, ...]:
    try:
        attempt()
    except HostError as error:
        return (f"{error.message} ({error.hint})" if error.hint else error.message,)
    return ()


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
        "CPU": f"{usable_cpus(facts):g} × {facts.cpu_model or 'unknown'}{_extensions(facts)}",
        "steal": "unknown" if facts.steal_since_boot is None else f"{facts.steal_since_boot:.1%} since boot",
        "memory": f"{format_bytes(facts.ram_bytes)}, {format_bytes(facts.ram_available_bytes)} available",
        "swap": format_bytes(facts.swap_bytes) if facts.swap_bytes else "none",
        "disks": disks or "unknown",
        "GPUs": gpus or "none",
        "network": " and ".join(name for name, there in (("IPv4", facts.ipv4), ("IPv6", facts.ipv6)) if there)
        or "no way out",
        "clock": "unknown" if facts.time_offset_s is None else f"{facts.time_offset_s:+.1f} s from ours",
        "services": "systemd" if facts.systemd else "no systemd",
        "root": ROOT_WORDS[facts.root_or_sudo],
        "Python": facts.python or "none",
        "Ollama": _ollama(facts),
    }


def _extensions(facts: HostFacts) -> str:
    known = ("avx512f", "avx2", "avx")
    best = next((flag for flag in known if flag in facts.cpu_flags), "")
    quota = f", quota {facts.cpu_quota:g} of {facts.cpus}" if facts.cpu_quota else ""
    return (f" ({best.upper().removesuffix('F')})" if best else "") + quota


def _ollama(facts: HostFacts) -> str:
    if not (facts.ollama_version or facts.ollama_running):
        return "none"
    where = f" ({facts.ollama_origin})" if facts.ollama_origin else ""
    return f"{facts.ollama_version or 'running'}{where}"
