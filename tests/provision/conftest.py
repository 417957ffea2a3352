"""A rootless host for the roles: a real sshd whose sessions have a home of their own, and a stand-in archive."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from loopback.sshd import Sshd, running_sshd

from deployctl.events import Event
from deployctl.hosts.target import Target
from deployctl.provision.deploy import ModelFiles, provision, rollback, teardown
from deployctl.provision.playbook import Play
from deployctl.provision.settings import Settings, Source
from deployctl.resources import Project

STANDIN = Path(__file__).parent / "standin" / "ollama"


def pack(path: Path, files: dict[str, bytes], *, compress: str) -> Path:
    """Write an archive in Ollama's release layout; ``compress`` is "zstd" or "gzip"."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o755
            tar.addfile(info, io.BytesIO(content))
    path.write_bytes(subprocess.run([compress, "-c"], input=buffer.getvalue(), capture_output=True, check=True).stdout)
    return path


@dataclass
class Rootless:
    """A host in process mode: ``home`` is its home, ``provision`` and ``teardown`` act on it."""

    target: Target
    home: Path
    folder: Path
    port: int
    server: Sshd
    served: Source | None = None
    events: list[Event] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "provision.log"

    @property
    def project(self) -> Project:
        return Project(self.folder)

    def archive(self, *, name: str = "engine.tar.zst", extra: bytes = b"library", program: bytes | None = None) -> Path:
        files = {"bin/ollama": STANDIN.read_bytes() if program is None else program, "lib/ollama/libx.so": extra}
        return pack(self.folder / name, files, compress="zstd" if name.endswith("zst") else "gzip")

    def source(self, archive: Path, version: str = "0.99.0", **changes: object) -> Source:
        values: dict[str, object] = {"engine": "ollama", "version": version, "archive": archive}
        return Source(**(values | changes))  # type: ignore[arg-type]

    def settings(self, **changes: object) -> Settings:
        values: dict[str, object] = {"slots": 2, "context": 512, "threads": 2, "port": self.port}
        return Settings(**(values | changes))  # type: ignore[arg-type]

    def provision(self, source: Source, model: ModelFiles, *, dry_run: bool = False, **changes: object) -> Play:
        return provision(
            self.target,
            self.settings(**changes),
            source,
            model,
            project=self.project,
            log=self.log,
            emit=self.events.append,
            dry_run=dry_run,
        )

    def teardown(self, *, purge: bool = True, dry_run: bool = False) -> Play:
        return teardown(
            self.target,
            purge=purge,
            project=self.project,
            log=self.log,
            emit=self.events.append,
            dry_run=dry_run,
        )

    def rollback(self, *, dry_run: bool = False) -> Play:
        return rollback(
            self.target, port=self.port, project=self.project, log=self.log, emit=self.events.append, dry_run=dry_run
        )

    @property
    def pid(self) -> int | None:
        try:
            return int((self.home / ".local/state/deployctl/ollama.pid").read_text())
        except FileNotFoundError:
            return None

    @property
    def server_log(self) -> str:
        return (self.home / ".local/state/deployctl/ollama.log").read_text()

    def files(self) -> set[str]:
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*") if not path.is_dir()}


@contextmanager
def running_host(folder: Path) -> Iterator[Rootless]:
    home = folder / "home"
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with running_sshd(folder / "sshd", f"SetEnv HOME={home}") as server:
        target = server.target(service_manager="process", python=sys.executable)
        rootless = Rootless(target, home, folder, port, server)
        try:
            yield rootless
        finally:
            if rootless.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(rootless.pid, signal.SIGKILL)


@pytest.fixture
def host(tmp_path) -> Iterator[Rootless]:
    """A rootless host that nobody has touched."""
    with running_host(tmp_path) as rootless:
        yield rootless


@pytest.fixture(scope="module")
def shared_host(tmp_path_factory) -> Iterator[Rootless]:
    """One host for the tests that leave it serving."""
    with running_host(tmp_path_factory.mktemp("shared")) as rootless:
        rootless.served = rootless.source(rootless.archive())
        rootless.provision(rootless.served, ModelFiles("tiny:1b"))
        yield rootless


@pytest.fixture
def installed(shared_host) -> Iterator[Rootless]:
    """A host that serves ``tiny:1b`` from the archive ``served`` already."""
    shared_host.events.clear()
    yield shared_host
    shared_host.server.restart_if_dead()


@pytest.fixture(scope="session")
def standin_archive(tmp_path_factory) -> Path:
    """The stand-in, packed as a release of Ollama is."""
    path = tmp_path_factory.mktemp("standin") / "standin.tar.zst"
    return pack(path, {"bin/ollama": STANDIN.read_bytes(), "lib/ollama/libx.so": b"library"}, compress="zstd")


@pytest.fixture
def weights(tmp_path) -> Path:
    """A file to upload in place of weights: large enough for several chunks."""
    path = tmp_path / "weights.gguf"
    block = hashlib.sha256(os.fsencode(tmp_path)).digest() * 32768  # 1 MiB, other bytes for each test
    path.write_bytes(block * 40)
    return path


@pytest.fixture
def wait_for() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never came about"
            time.sleep(0.02)

    return wait
