"""A booted lab host, as the tests hold it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deployctl.hosts.target import Target
from nspawn.base import base_root, cache_dir
from nspawn.guest import Sudo, new_host_key

CLEAN_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}


class LabError(RuntimeError):
    """A lab host did not come up, or did not do what the test needs from it."""


@dataclass
class LabHost:
    """A Debian host with systemd and sshd.

    ``address`` and ``port`` are where its sshd listens; ``gateway`` is this machine's end of the link, on which a
    test may serve files to the host. ``root_dir`` is its root directory as seen from here (what is mounted inside,
    such as /run and /tmp, does not show there).
    """

    name: str
    address: str
    gateway: str
    port: int
    user: str
    password: str
    key_file: Path
    root_dir: Path
    guardian: subprocess.Popen[str]
    jump: LabHost | None = None

    # -- reaching it ------------------------------------------------------------------------------------------------

    def target(self, known_hosts: Path, *, trust: bool = True) -> Target:
        """Return where and how to get in; with ``trust``, its host key is written into ``known_hosts``."""
        target = Target(
            name=self.name,
            via=self.jump.target(known_hosts, trust=trust) if self.jump else None,
            address=self.address,
            port=self.port,
            user=self.user,
            known_hosts=known_hosts,
            key_file=self.key_file,
            become=self.user != "root",
        )
        if trust:
            known_hosts.parent.mkdir(parents=True, exist_ok=True)
            with known_hosts.open("a") as file:
                file.write(f"{target.known_hosts_name} {self.host_key}\n")
            known_hosts.chmod(0o600)
        return target

    @property
    def host_key(self) -> str:
        """The public host key, ``ssh-ed25519 AAAA…``."""
        return (self.root_dir / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()

    def ssh(self, command: str, *, check: bool = True, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        """Run a command as the host's user over a real SSH connection."""
        options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        argv = ["ssh", "-F", "none", "-i", str(self.key_file), "-p", str(self.port)]
        argv += [word for option in options for word in ("-o", option)]
        if self.jump is not None:
            jump = self.jump
            proxy = ["ssh", "-F", "none", "-i", str(jump.key_file), *(w for o in options for w in ("-o", o))]
            to = f"[{self.address}]:{self.port}"
            argv += ["-o", f"ProxyCommand={shlex.join([*proxy, '-W', to, '-l', jump.user, '--', jump.address])}"]
        argv += ["-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=10", "-l", self.user, "--", self.address, command]
        return _finished(argv, check, timeout)

    def run(self, command: str, *, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command as root inside the host, past sshd: works when that is stopped. Raises LabError."""
        argv = ["nsenter", f"--target={self.leader()}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd"]
        return _finished([*argv, "--", "/bin/sh", "-c", command], check, timeout)

    def leader(self) -> int:
        """Return the process id, seen from here, of the host's own process 1. Raises LabError when it is down."""
        waiting = [self.guardian.pid]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):
                spaces = re.search(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
                ids = spaces[1].split() if spaces else []
                if len(ids) > 2 and ids[-1] == "1":  # process 1 of the namespace within the guardian's
                    return pid
                for task in Path(f"/proc/{pid}/task").iterdir():
                    waiting += [int(child) for child in (task / "children").read_text().split()]
        raise LabError(f"{self.name} is not running")

    # -- what may happen to a host ------------------------------------------------------------------------------------

    def regenerate_host_key(self) -> str:
        """Give sshd another host key, as a reinstalled host has; returns the new public key."""
        key = new_host_key(self.root_dir)
        self.run("systemctl restart ssh")
        self.wait_for_ssh()
        return key

    def stop_sshd(self) -> None:
        """Stop sshd and cut every open connection."""
        self.run("systemctl stop ssh; pkill -KILL -x sshd; true")

    def start_sshd(self) -> None:
        """Start sshd again and wait until it answers."""
        self.run("systemctl start ssh")
        self.wait_for_ssh()

    def reboot(self, timeout: float = 60, *, abruptly: bool = False) -> None:
        """Reboot the host and wait until it serves again; ``abruptly``: nothing in there gets to end its work."""
        before = self.leader()
        self.run("systemctl reboot -ff" if abruptly else "systemctl reboot", check=False)
        _wait(lambda: self._leader_or_none() not in {before, None}, timeout, f"{self.name} did not reboot")
        self.wait_until_up(timeout)

    def power_off(self) -> None:
        """Cut the power: nothing inside gets to say good-bye. The host stays down."""
        os.kill(self.leader(), 9)
        _wait(lambda: self._leader_or_none() is None, 10, f"{self.name} did not go down")

    def stop(self) -> None:
        """Take the host away with everything that belongs to it."""
        if self.guardian.stdin:
            self.guardian.stdin.close()
        try:
            self.guardian.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.guardian.kill()
            self.guardian.wait()
        if self.guardian.stdout:
            self.guardian.stdout.close()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait_until_up(self, timeout: float = 60) -> None:
        """Wait for sshd's greeting and the end of the boot."""
        self.wait_for_ssh(timeout)
        state = self.run("systemctl is-system-running --wait", check=False, timeout=timeout).stdout.strip()
        if state != "running":
            failed = self.run("systemctl --failed --no-legend", check=False).stdout.strip()
            raise LabError(f"{self.name} is {state}: {failed}")

    def wait_for_ssh(self, timeout: float = 30) -> None:
        """Wait until sshd greets."""
        _wait(self._greets, timeout, f"no sshd at {self.address}:{self.port}")

    def _greets(self) -> bool:
        if self.guardian.poll() is not None:
            raise LabError(f"the guardian of {self.name} ended with status {self.guardian.returncode}")
        inside = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            if self.jump is not None:  # only the jump host has a way to it: a socket belongs to where it was made
                _enter(f"/proc/{self.jump.guardian.pid}/ns/net")
            family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(1)
                sock.connect((self.address, self.port))
                return sock.recv(4) == b"SSH-"
            return False
        finally:
            if self.jump is not None:
                _enter(f"/proc/self/fd/{inside}")
            os.close(inside)

    def _leader_or_none(self) -> int | None:
        with contextlib.suppress(LabError):
            return self.leader()
        return None


@contextlib.contextmanager
def running_host(
    name: str,
    key_file: Path,
    *,
    user: str = "deploy",
    sudo: Sudo = "nopasswd",
    password: str = "",
    suite: str = "bookworm",
    private_network: bool = True,
    behind: LabHost | None = None,
    ipv6_only: bool = False,
    cpus: float | None = None,
    memory_mib: int | None = None,
    disk_mib: int | None = None,
    mounts: Mapping[str, int] | None = None,
    password_login: bool = False,
    without: tuple[str, ...] = (),
) -> Iterator[LabHost]:
    """Boot a host and take it away at the end.

    ``key_file`` is the private key that gets in. A host ``behind`` another is linked to that one only. ``cpus`` (a
    quota) and ``memory_mib`` limit it, and its /proc tells so (lxcfs). ``disk_mib`` is the room on its root disk;
    ``mounts`` are more disks, by mount point and MiB. Commands in ``without`` are taken away before it boots. With
    ``private_network`` the host has its own network namespace and address, else it shares this machine's and its sshd
    listens on a free port of the loopback address.
    """
    port = 22 if private_network else _free_port()
    spec = {
        "base": str(base_root(suite)),
        "folder": str(cache_dir() / "run" / f"{name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"),
        "parent": behind.guardian.pid if behind else os.getpid(),
        "net": 78 if behind else 77,  # a host that is linked both ways must not have one subnet twice
        "ipv6_only": ipv6_only,
        "share": {"cpus": cpus, "memory_mib": memory_mib, "disk_mib": disk_mib, "mounts": dict(mounts or {})},
        "private": private_network,
        "guest": {
            "name": name,
            "user": user,
            "sudo": sudo,
            "password": password,
            "public_key": key_file.with_suffix(".pub").read_text().strip(),
            "port": port,
            "password_login": password_login,
            "without": without,
        },
    }
    namespaces = ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    if private_network:
        namespaces.append("--net")
    guardian = subprocess.Popen(
        ["unshare", *namespaces, sys.executable, "-S", "-m", "nspawn.guardian", json.dumps(spec)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests; the guardian ends when they do
    )
    assert guardian.stdout
    told = guardian.stdout.readline()
    if not told:
        guardian.wait()
        raise LabError(f"{name} could not be started (the guardian's own message is on standard error)")
    facts = json.loads(told)
    subnet, net = facts.get("subnet"), spec["net"]
    stem = f"fd{net}:{subnet}::" if ipv6_only else f"10.{net}.{subnet}."
    host = LabHost(
        name=name,
        address="127.0.0.1" if subnet is None else f"{stem}2",
        gateway="127.0.0.1" if subnet is None else f"{stem}1",
        port=port,
        user=user,
        password=password,
        key_file=key_file,
        root_dir=Path(f"/proc/{guardian.pid}/root{facts['root']}"),
        guardian=guardian,
        jump=behind,
    )
    try:
        host.wait_until_up()
        yield host
    finally:
        host.stop()


def new_client_key(folder: Path) -> Path:
    """Make an ed25519 key pair without a passphrase in ``folder``; returns the private key's path."""
    key = folder / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return key


def _enter(path: str) -> None:
    """Move this thread into a network namespace (setns(2))."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(handle)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _finished(argv: list[str], check: bool, timeout: float) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False, env=CLEAN_ENV
    )
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise LabError(f"`{shlex.join(argv[-1:])}` ended with status {done.returncode}: {said}")
    return done


def _wait(ready: Callable[[], bool], timeout: float, otherwise: str) -> None:
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise LabError(otherwise)
        time.sleep(0.05)
