"""What the user asked for, before anything is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deployctl.hosts.secrets import SecretReader

Engine = Literal["ollama", "embedded"]
KvType = Literal["f16", "q8_0", "q4_0"]
Protocol = Literal["ollama", "openai"]
KeyPolicy = Literal["ask", "accept-new", "refuse"]


@dataclass(frozen=True)
class Generator:
    """Who generates the load: ``workers`` processes here (0: one, without a master), or on each of ``hosts``."""

    workers: int = 0
    hosts: tuple[str, ...] = ()
    protocol: Protocol = "ollama"


@dataclass(frozen=True)
class Wanted:
    """One order: which plan, which model, where, how; None means "choose for me"."""

    model: str
    plan: str | None = None
    host: str | None = None
    key_file: Path | None = None
    passphrase: str | None = None  # these three are sources of secrets: ask, env:NAME, fd:N
    password: str | None = None
    sudo_password: str | None = None
    jump: str | None = None  # hosts to go through, in order, separated by commas
    host_key: str | None = None  # the fingerprint to insist on
    key_policy: KeyPolicy = "ask"
    engine: Engine | None = None
    archive: Path | None = None
    ollama_version: str | None = None
    ollama_mirror: str | None = None  # where releases are, in the layout of the official ones; or one archive
    ollama_sha256: str | None = None  # of the archive, to insist on
    models_dir: str | None = None
    allow_reboot: bool = False  # for a GPU's driver
    gguf: Path | None = None
    variant: str | None = None
    slots: int | None = None
    context: int | None = None  # tokens per slot
    kv_type: KvType = "f16"
    slo: str | None = None
    workload: str | None = None
    budget: str = "standard"
    max_users: int | None = None
    seed: int = 1
    registry: str | None = None  # address to ask for a model's facts
    offline: bool = False  # ask no registry
    probe: bool = True  # measure the host's memory bandwidth before sizing
    generator: Generator = Generator()


@dataclass(frozen=True)
class Place:
    """Where a job keeps and finds things, and whom it may ask.

    ``ask`` takes a question and returns yes or no, ``ask_secret`` what nobody shall see; None: nobody is there.
    """

    data_dir: Path
    cache_dir: Path
    ask: Callable[[str], bool] | None = None
    ask_secret: Callable[[str], str] | None = None
    secrets: SecretReader = field(default_factory=lambda: SecretReader(None))

    @property
    def known_hosts(self) -> Path:
        """Our own known_hosts, shared by paramiko, OpenSSH and Ansible."""
        return self.data_dir / "known_hosts"

    @property
    def sandbox(self) -> Path:
        """The sandbox's disk."""
        return self.data_dir / "sandbox"
