"""Making hosts ready to generate load: the playbook where a host has not this version yet, else one question to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from deployctl.catalog.catalog import Catalog
from deployctl.errors import ProvisionError, UsageError
from deployctl.events import Emit, step
from deployctl.hosts.ssh import Session, connect
from deployctl.jobs.reach import find_target
from deployctl.jobs.wanted import Place, Wanted
from deployctl.load.bundle import COMPLETE, identity
from deployctl.load.remote import LoadMachine
from deployctl.provision.playbook import run_playbook
from deployctl.resources import Project

ALL = "all"
"""Stands for every host that inventory/hosts.yml marks with ``loadgen: true``."""

_FOLDER = "~/.local/share/deployctl/loadgen"  # the role's default
_PYTHON = "python3"
_ASK = f"{_PYTHON} -c \"import platform, sys; print('%d.%d' % sys.version_info[:2], platform.machine())\""


def names_of(wanted: Iterable[str], catalog: Catalog) -> tuple[str, ...]:
    """The hosts that ``--loadgen`` means, each once; raises UsageError where ``all`` means none."""
    found: dict[str, None] = {}
    for name in wanted:
        marked = [host.name for host in catalog.hosts.values() if host.loadgen] if name == ALL else [name]
        if not marked:
            raise UsageError(
                "inventory/hosts.yml marks no host as a load generator",
                hint="write loadgen: true under a host there, or name hosts: --loadgen user@address",
            )
        found |= dict.fromkeys(marked)
    return tuple(found)


def ready_machines(
    names: Iterable[str], wanted: Wanted, catalog: Catalog, place: Place, project: Project, log: Path, emit: Emit
) -> tuple[LoadMachine, ...]:
    """Set up every named host that has not this version's environment yet, and return all of them.

    Raises UsageError, HostError or ProvisionError; nothing is removed from a host.
    """
    machines = []
    for name in names:
        target = find_target(_only(wanted, name), catalog, place)
        place.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with step(emit, "loadgen", f"Preparing the load generator {target.name}") as current:
            with connect(target, wanted.key_policy, ask=place.ask, ask_secret=place.ask_secret) as session:
                target = session.target
                folder = _installed(session)
            current.detail = f"{target.name} is ready"
            if folder is None:
                cache = {"loadgen_cache": str(place.cache_dir.absolute())}
                play = run_playbook("loadgen.yml", target, cache, project=project, log=log, emit=emit, step="loadgen")
                with connect(target, wanted.key_policy, ask=place.ask, ask_secret=place.ask_secret) as session:
                    folder = _installed(session)
                current.detail = f"{target.name}: {play.changed} changed"
            if folder is None:
                raise ProvisionError(f"{target.name} was set up and is not ready", hint=f"the whole log: {log}")
            machines.append(LoadMachine(target, folder, _PYTHON))
    return tuple(machines)


def _only(wanted: Wanted, host: str) -> Wanted:
    """The order with this host; what was said of the measured host's way in holds for no other, but for the key."""
    return replace(wanted, host=host, plan=None, host_key=None, jump=None, password=None, sudo_password=None)


def _installed(session: Session) -> str | None:
    """The folder of this version's environment, where the host has all of it."""
    answer = session.run(_ASK)
    words = answer.stdout.split()
    if answer.rc or len(words) != 2:
        return None
    folder = f"{_FOLDER}/{identity(*words)}"
    return folder if session.run(f"test -e {folder}/{COMPLETE}").rc == 0 else None
