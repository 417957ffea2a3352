"""Where a host is and how to get in: what ssh, paramiko and Ansible are all told alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deployctl.hosts.secrets import Secrets

ServiceManager = Literal["systemd", "process"]


@dataclass(frozen=True)
class Target:
    """One host over SSH.

    ``python`` is the interpreter for Ansible on the host (None: let Ansible discover it). ``service_manager`` says
    how a service is kept there: systemd, or a plain detached process (the sandbox). ``become`` asks for sudo.
    ``via`` is the host to jump through, which may itself have one. ``fingerprint`` is the host key to insist on.
    """

    name: str
    address: str
    port: int = 22
    user: str = "root"
    known_hosts: Path = field(default_factory=lambda: Path("known_hosts"))
    key_file: Path | None = None
    python: str | None = None
    service_manager: ServiceManager = "systemd"
    become: bool = True
    via: Target | None = None
    fingerprint: str | None = None
    secrets: Secrets = field(default=Secrets(), repr=False, compare=False)

    @property
    def known_hosts_name(self) -> str:
        """The name under which this host's key is filed: OpenSSH's own, ``[address]:port`` off port 22.

        Behind a jump the jump's name stands before it: private addresses are the same in many networks.
        """
        own = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return own if self.via is None else f"{self.via.known_hosts_name}/{own}"

    @property
    def chain(self) -> Iterator[Target]:
        """Every host on the way, this one last."""
        if self.via is not None:
            yield from self.via.chain
        yield self

    def __str__(self) -> str:
        """``user@address:port`` with IPv6 literals in brackets."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}" + ("" if self.port == 22 else f":{self.port}")
