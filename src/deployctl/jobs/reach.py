"""Getting to the host: the sandbox, an inventory host or an address; a session over SSH, and its facts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.hosts import HostEntry
from deployctl.errors import UsageError
from deployctl.events import Emit, step
from deployctl.hosts.facts import HostFacts, gather
from deployctl.hosts.inventory import parse_host
from deployctl.hosts.target import Target
from deployctl.jobs.wanted import Place, Wanted
from deployctl.units import format_bytes

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

SANDBOX = "sandbox"


@dataclass(frozen=True)
class Reached:
    """A host that answers: how to get in, a live session, what it is."""

    target: Target
    session: Session
    facts: HostFacts
    sandbox: bool


@contextmanager
def reach(wanted: Wanted, catalog: Catalog, place: Place, emit: Emit) -> Iterator[Reached]:
    """Connect to the host and read its facts; the sandbox is switched on for the duration of the block."""
    from deployctl.hosts.ssh import connect

    sandbox = wanted.host is None and wanted.plan == SANDBOX
    found = None if sandbox else find_target(wanted, catalog, place)
    place.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        with step(emit, "host", "Connecting over SSH") as current:
            if found is None:
                from deployctl.sandbox.host import SandboxHost

                target = stack.enter_context(SandboxHost(place.sandbox)).target
            else:
                target = found
            session = stack.enter_context(connect(target, wanted.key_policy, ask=place.ask))
            facts = gather(session)
            current.detail = describe(target, facts)
        yield Reached(target, session, facts, sandbox)


def find_target(wanted: Wanted, catalog: Catalog, place: Place) -> Target:
    """The host that was named, else the only inventory host of that plan; raises UsageError otherwise."""
    if wanted.host is None and wanted.plan is None:
        raise UsageError("no host was named", hint="--host user@address[:port], or --plan ID")
    if wanted.host is None:
        fitting = [host for host in catalog.hosts.values() if host.plan == wanted.plan]
        if len(fitting) == 1:
            return _from_inventory(fitting[0], wanted, place)
        found = "no host" if not fitting else f"{len(fitting)} hosts ({', '.join(host.name for host in fitting)})"
        raise UsageError(
            f"inventory/hosts.yml lists {found} of plan {wanted.plan}",
            hint="--host user@address[:port], or list it there (inventory/hosts.example.yml shows how)",
        )
    if wanted.host in catalog.hosts:
        return _from_inventory(catalog.hosts[wanted.host], wanted, place)
    if wanted.host in catalog.plans:
        raise UsageError(
            f"{wanted.host} is a plan, not a host", hint=f"--plan {wanted.host} --host user@address[:port]"
        )
    if "@" not in wanted.host and catalog.hosts and "." not in wanted.host and ":" not in wanted.host:
        catalog.host(wanted.host)  # a bare word: most likely a misspelt name, so offer the nearest
    return parse_host(wanted.host, known_hosts=place.known_hosts, key_file=wanted.key_file)


def _from_inventory(host: HostEntry, wanted: Wanted, place: Place) -> Target:
    target = Target(
        name=host.name,
        address=host.address,
        port=host.port,
        user=host.user,
        known_hosts=place.known_hosts,
        key_file=host.key_file.expanduser() if host.key_file else None,
        python=host.python,
        become=host.become,
    )
    return replace(target, key_file=wanted.key_file) if wanted.key_file else target


def describe(target: Target, facts: HostFacts) -> str:
    """One line on a host: name, system, size."""
    gpus = f", {len(facts.gpus)} GPU" if facts.gpus else ""
    return f"{target.name}: {facts.os_id} {facts.os_version}, {facts.cpus} CPUs, {format_bytes(facts.ram_bytes)}{gpus}"
