"""A machine that generates load for us: how a worker is started there over SSH, and what it is told."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from deployctl.hosts.openssh import ssh_command
from deployctl.hosts.target import Target
from deployctl.load.connection import Address
from deployctl.load.spec import SPEC_VARIABLE, LoadSpec
from deployctl.load.visitor import header

MACHINE_VARIABLE = "DEPLOYCTL_LOAD_MACHINE"
_PORTS = range(20_000, 32_000)  # below the ports that Linux hands out by itself


@dataclass(frozen=True)
class LoadMachine:
    """A host that `playbooks/loadgen.yml` made ready: its environment is in ``folder``; ``python`` runs it."""

    target: Target
    folder: str
    python: str = "python3"

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self.target.name


@dataclass(frozen=True)
class Visit:
    """One worker's start: the ssh command that brings it there, and what goes down its standard input first."""

    machine: str
    target: Target
    argv: list[str]
    first_input: bytes


def visit(machine: LoadMachine, spec: LoadSpec, files: Mapping[str, str], locustfile: str, master_port: int) -> Visit:
    """Return a worker's start; its ports on the far side are drawn anew each time.

    The master's port is forwarded back to the far side's loopback. So is the server where its address is this
    machine's own loopback (a tunnel's end, say); a server elsewhere is asked directly.
    """
    near, far = random.sample(_PORTS, 2)
    ways = [f"127.0.0.1:{near}:127.0.0.1:{master_port}"]
    address = Address.parse(spec.url)
    url = spec.url
    if is_loopback(address.host):
        ways.append(f"127.0.0.1:{far}:{address.authority}")
        url = f"http://127.0.0.1:{far}{address.base}"
    there = replace(
        spec,
        url=url,
        prompts=Path("{folder}/prompts"),
        samples=Path("sent to the master") if spec.samples else None,
        replay=Path("{folder}/replay.jsonl") if spec.replay else None,
    )
    worker = ["-m", "locust", "-f", f"{{folder}}/{locustfile}", "--host", url, "--loglevel", "WARNING", "--worker"]
    worker += ["--master-host", "127.0.0.1", "--master-port", str(near)]
    environment = {SPEC_VARIABLE: "{folder}/load.json", MACHINE_VARIABLE: machine.name, "PYTHONUNBUFFERED": "1"}
    first = header(environment, {**files, "load.json": there.to_json()}, worker)
    options = [word for way in ways for word in ("-R", way)]
    options += [word for option in _OPTIONS for word in ("-o", option)]
    command = f"PYTHONPATH={_quoted(machine.folder)} exec {shlex.quote(machine.python)} -m deployctl.load.visitor"
    return Visit(machine.name, machine.target, [*ssh_command(machine.target, *options), command], first)


_OPTIONS = ("ExitOnForwardFailure=yes", "ControlMaster=no", "ControlPath=none", "Compression=no")


def is_loopback(host: str) -> bool:
    """Whether the name or address is a machine's own, so that another machine would ask itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _quoted(path: str) -> str:
    """Quote a path for a shell, its leading ``~`` left to that shell."""
    return f'"$HOME"{shlex.quote(path[1:])}' if path.startswith("~/") else shlex.quote(path)
