"""A real OpenSSH server on the loopback, with keys of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deployctl.hosts.target import Target


@dataclass
class Sshd:
    """An sshd on 127.0.0.1 that lets the current user in with ``client_key``; its log is at VERBOSE level."""

    directory: Path
    port: int
    config: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> Path:
        return self.directory / "host_key"

    @property
    def client_key(self) -> Path:
        return self.directory / "client_key"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def new_key(self, name: str, kind: str = "ed25519") -> Path:
        path = self.directory / name
        path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", path], check=True)
        return path

    def fingerprint(self) -> str:
        listing = subprocess.run(["ssh-keygen", "-lf", self.host_key], check=True, capture_output=True, text=True)
        return listing.stdout.split()[1]

    def known_hosts_line(self) -> str:
        kind, blob = self.host_key.with_suffix(".pub").read_text().split()[:2]
        return f"[127.0.0.1]:{self.port} {kind} {blob}\n"

    def target(self, **changes: object) -> Target:
        values: dict[str, object] = {
            "name": "loopback",
            "address": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "known_hosts": self.directory / "known_hosts",
            "key_file": self.client_key,
            "become": False,
        }
        return Target(**(values | changes))  # type: ignore[arg-type]

    def start(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        (self.directory / "authorized_keys").write_text(self.client_key.with_suffix(".pub").read_text())
        (self.directory / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.host_key}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.directory}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel VERBOSE\nMaxStartups 50\n"
            f"Subsystem sftp internal-sftp\n{self.config}\n"
        )
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", self.directory / "sshd_config"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError(f"sshd did not come up: {self.log}")

    def restart_if_dead(self) -> None:
        if self.process is None:
            self.start()

    def stop(self) -> None:
        """End the server and every connection it serves, as a crash or a reboot would."""
        if self.process is None:
            return
        for pid in [*self.connections(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self.process = None

    def connections(self) -> list[int]:
        """The server's per-connection processes, children of children included."""
        assert self.process is not None
        found: list[int] = []
        parents = [self.process.pid]
        while parents:
            listing = subprocess.run(
                ["ps", "-o", "pid=,comm=", "--ppid", ",".join(map(str, parents))], capture_output=True, text=True
            ).stdout
            parents = [int(line.split()[0]) for line in listing.splitlines() if "sshd" in line.split()[1]]
            found += parents
        return found


@contextmanager
def running_sshd(directory: Path, config: str = "") -> Iterator[Sshd]:
    """Run a server with fresh keys in ``directory``, already known to its target's known_hosts file."""
    if not shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin"):
        pytest.skip("openssh-server is not installed")
    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Sshd(directory, port, config)
    server.new_key("host_key")
    server.new_key("client_key")
    server.start()
    (directory / "known_hosts").write_text(server.known_hosts_line())
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A fresh server per test."""
    with running_sshd(tmp_path / "sshd") as server:
        yield server
