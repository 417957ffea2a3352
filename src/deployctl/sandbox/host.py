"""The sandbox: a host reached over real SSH, on this machine, with the caller's own rights and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deployctl.errors import HostError, UsageError
from deployctl.hosts.target import Target
from deployctl.sandbox.model import INSTALL_HINT

_BOOT_S = 30.0
_SHUTDOWN_S = 15.0


class SandboxHost:
    """Boots the sandbox in ``root`` on entering, kills everything that was started through it on leaving.

    ``root`` holds the server's key, the client's key and the home directory; they stay, so a later boot finds the same
    host with the same installation, the engine stopped. The port is kept where it is still free. Everything dies with
    this process too, SIGKILL included. Raises UsageError when asyncssh is missing or ``root`` is in use, HostError when
    the server does not come up.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._process: subprocess.Popen[bytes] | None = None
        self._target: Target | None = None

    @property
    def target(self) -> Target:
        """How to reach the booted host. Raises HostError before it is booted."""
        if self._target is None:
            raise HostError(f"the sandbox {self.root} is not booted")
        return self._target

    @property
    def home(self) -> Path:
        """The home directory on the host."""
        return self.root / "home"

    def __enter__(self) -> Self:
        import importlib.util

        if importlib.util.find_spec("asyncssh") is None:
            raise UsageError("the sandbox's SSH server is not installed", hint=INSTALL_HINT)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.chmod(0o700)
        log = os.open(self.root / "boot.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deployctl.sandbox.guardian", str(self.root)],
                stdin=subprocess.PIPE,  # its end of file tells the guardian that we are gone
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us: we shut the host down in order
            )
        finally:
            os.close(log)
        try:
            ready = self._wait_until_ready()
            self._target = Target(
                name="sandbox",
                address="127.0.0.1",
                port=int(ready["port"]),
                user=pwd.getpwuid(os.getuid()).pw_name,
                known_hosts=self.root / "known_hosts",
                key_file=self.root / "etc" / "id_ed25519",
                python=sys.executable,
                service_manager="process",
                become=False,
            )
            self._write_known_hosts(self._target, str(ready["host_key"]))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_until_ready(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + _BOOT_S
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 4096) if ready else b""
            if not data:
                detail = (self.root / "boot.log").read_text(errors="replace").strip()[-500:]
                raise HostError(f"the sandbox's SSH server did not come up in {self.root}: {detail or 'no answer'}")
            line += data
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            message = str(answer["error"])
            if message.endswith("is already running"):
                raise UsageError(message, hint="end the other run, or choose another --data-dir")
            raise HostError(f"the sandbox's SSH server did not come up: {message}")
        return answer

    def _write_known_hosts(self, target: Target, host_key: str) -> None:
        partial = target.known_hosts.with_name("known_hosts.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{target.known_hosts_name} {host_key}\n")
        partial.replace(target.known_hosts)

    def alive(self) -> bool:
        """Say whether the host still runs."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """Shut the host down and wait until everything is gone. May be called twice."""
        process, self._process, self._target = self._process, None, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_SHUTDOWN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
