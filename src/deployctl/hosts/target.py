"""Where a host is and how to get in: what ssh, paramiko and Ansible are all told alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ServiceManager = Literal["systemd", "process"]


@dataclass(frozen=True)
class Target:
    """One host over SSH.

    ``python`` is the interpreter for Ansible on the host (None: let Ansible discover it). ``service_manager`` says
    how a service is kept there: systemd, or a plain detached process (the sandbox). ``become`` asks for sudo.
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

    @property
    def known_hosts_name(self) -> str:
        """The name under which OpenSSH files this host's key: ``[address]:port`` off port 22."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    def __str__(self) -> str:
        """``user@address:port`` with IPv6 literals in brackets."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}" + ("" if self.port == 22 else f":{self.port}")
