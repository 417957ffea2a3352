"""Getting to the host: the sandbox, an inventory host or an address; a session over SSH, and its facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.hosts import FINGERPRINT, HostEntry
from deployctl.errors import UsageError
from deployctl.events import Emit, step
from deployctl.hosts.facts import HostFacts, gather
from deployctl.hosts.inventory import parse_host
from deployctl.hosts.privilege import ensure_root
from deployctl.hosts.secrets import Secrets
from deployctl.hosts.target import Target
from deployctl.jobs.wanted import Place, Wanted
from deployctl.units import format_bytes

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

SANDBOX = "sandbox"


@dataclass(frozen=True)
class Reached:
    """A host that answers: how to get in, a live session, what it is; ``entry`` is what hosts.yml says of it."""

    target: Target
    session: Session
    facts: HostFacts
    sandbox: bool
    entry: HostEntry | None = None


@contextmanager
def reach(wanted: Wanted, catalog: Catalog, place: Place, emit: Emit, *, root: bool = True) -> Iterator[Reached]:
    """Connect to the host and read its facts; the sandbox is switched on for the duration of the block.

    With ``root`` a user who cannot become root is refused at once, by RootMissing.
    """
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
            session = stack.enter_context(
                connect(target, wanted.key_policy, ask=place.ask, ask_secret=place.ask_secret)
            )
            facts = gather(session)
            if root:
                ensure_root(session, facts, place.ask_secret)
            current.detail = describe(target, facts)
        yield Reached(session.target, session, facts, sandbox, None if sandbox else listed_host(wanted, catalog))


def find_target(wanted: Wanted, catalog: Catalog, place: Place) -> Target:
    """The host that was named, else the only inventory host of that plan; raises UsageError otherwise."""
    finder = _Finder(wanted, catalog, place)
    entry = listed_host(wanted, catalog)
    if entry is not None:
        return finder.listed(entry)
    assert wanted.host is not None
    if wanted.host in catalog.plans:
        raise UsageError(
            f"{wanted.host} is a plan, not a host", hint=f"--plan {wanted.host} --host user@address[:port]"
        )
    if "@" not in wanted.host and catalog.hosts and "." not in wanted.host and ":" not in wanted.host:
        catalog.host(wanted.host)  # a bare word: most likely a misspelt name, so offer the nearest
    return finder.typed(wanted.host)


def listed_host(wanted: Wanted, catalog: Catalog) -> HostEntry | None:
    """The entry of inventory/hosts.yml that is meant, or None for a host that was typed; raises UsageError."""
    if wanted.host is not None:
        return catalog.hosts.get(wanted.host)
    if wanted.plan is None:
        raise UsageError("no host was named", hint="--host user@address[:port], or --plan ID")
    fitting = [host for host in catalog.hosts.values() if host.plan == wanted.plan]
    if len(fitting) == 1:
        return fitting[0]
    found = "no host" if not fitting else f"{len(fitting)} hosts ({', '.join(host.name for host in fitting)})"
    raise UsageError(
        f"inventory/hosts.yml lists {found} of plan {wanted.plan}",
        hint="--host user@address[:port], or list it there (inventory/hosts.example.yml shows how)",
    )


def at_host(wanted: Wanted, reached: Reached) -> Wanted:
    """The order with what hosts.yml says of this host, where the command line says nothing."""
    entry = reached.entry
    if entry is None:
        return wanted
    settled = wanted.archive is not None or wanted.engine == "embedded"
    return replace(
        wanted,
        models_dir=wanted.models_dir or entry.models_dir,
        ollama_mirror=wanted.ollama_mirror or (None if settled else entry.ollama_mirror),
    )


class _Finder:
    """Builds targets from the inventory and the command line, whose options win."""

    def __init__(self, wanted: Wanted, catalog: Catalog, place: Place) -> None:
        self.wanted = wanted
        self.catalog = catalog
        self.place = place
        self.secrets = place.secrets
        if wanted.host_key is not None and not re.fullmatch(FINGERPRINT, wanted.host_key):
            raise UsageError(
                f"--host-key {wanted.host_key}: not a fingerprint", hint="write it as ssh-keygen -l does: SHA256:…"
            )

    def typed(self, text: str) -> Target:
        """A host as it is typed."""
        target = parse_host(text, known_hosts=self.place.known_hosts, key_file=self.wanted.key_file)
        return self._with_options(target, None)

    def listed(self, host: HostEntry) -> Target:
        """A host of inventory/hosts.yml."""
        return self._with_options(self._from_inventory(host), host)

    def _with_options(self, target: Target, host: HostEntry | None) -> Target:
        wanted = self.wanted
        sources = {
            "passphrase": wanted.passphrase or (host.passphrase if host else None),
            "password": wanted.password or (host.password if host else None),
            "sudo": wanted.sudo_password or (host.sudo_password if host else None),
        }
        jump = wanted.jump or (host.jump if host else None)
        return replace(
            target,
            key_file=wanted.key_file or target.key_file,
            fingerprint=wanted.host_key or target.fingerprint,
            secrets=self._read(sources, target),
            via=self._chain(jump, frozenset({target.name})) if jump else None,
        )

    def _chain(self, jump: str, seen: frozenset[str]) -> Target:
        """The last of the hosts to jump through, with the others behind it. A key that was named opens these, too."""
        via: Target | None = None
        for text in (part.strip() for part in jump.split(",")):
            host = self.catalog.hosts.get(text)
            if text in seen:
                raise UsageError(f"{text} jumps through itself", hint="edit `jump` in inventory/hosts.yml")
            if host is None:
                hop = parse_host(text, known_hosts=self.place.known_hosts, key_file=self.wanted.key_file)
                sources = {"passphrase": self.wanted.passphrase}
            else:
                hop = self._from_inventory(host)
                sources = {"passphrase": host.passphrase, "password": host.password}
                if host.jump and via is None:
                    via = self._chain(host.jump, seen | {text})
            via = replace(hop, secrets=self._read(sources, hop), via=via)
        assert via is not None
        return via

    def _read(self, sources: Mapping[str, str | None], target: Target) -> Secrets:
        words = {
            "passphrase": f"Passphrase of {target.key_file or f'the key for {target}'}",
            "password": f"Password of {target}",
            "sudo": f"Password of sudo on {target}",
        }
        return Secrets(**{name: self.secrets.read(source, words[name]) for name, source in sources.items()})

    def _from_inventory(self, host: HostEntry) -> Target:
        return Target(
            name=host.name,
            address=host.address,
            port=host.port,
            user=host.user,
            known_hosts=self.place.known_hosts,
            key_file=host.key_file.expanduser() if host.key_file else None,
            python=host.python,
            become=host.become,
            fingerprint=host.host_key,
        )


def describe(target: Target, facts: HostFacts) -> str:
    """One line on a host: name, system, size."""
    gpus = f", {len(facts.gpus)} GPU" if facts.gpus else ""
    return f"{target.name}: {facts.os_id} {facts.os_version}, {facts.cpus} CPUs, {format_bytes(facts.ram_bytes)}{gpus}"
