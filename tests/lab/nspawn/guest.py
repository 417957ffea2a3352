"""What a clone of the base root is given before it boots: a name, a user, keys and sudo rights."""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Sudo = Literal["nopasswd", "password", "none"]


@dataclass(frozen=True)
class Guest:
    """The identity of one host. ``password`` is for sudo (and password log-in); empty means none is set."""

    name: str
    user: str
    sudo: Sudo
    password: str
    public_key: str
    port: int
    password_login: bool = False
    without: tuple[str, ...] = ()


def prepare(root: Path, guest: Guest) -> None:
    """Write the identity of ``guest`` into its root directory."""
    etc = root / "etc"
    (etc / "hostname").write_text(f"{guest.name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {guest.name}\n")
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    _add_user(root, guest)
    _authorize(root, guest)
    if guest.port != 22:
        (etc / "ssh/sshd_config.d").mkdir(exist_ok=True)
        (etc / "ssh/sshd_config.d/port.conf").write_text(f"Port {guest.port}\n")
    if guest.password_login:
        (etc / "ssh/sshd_config.d").mkdir(exist_ok=True)
        (etc / "ssh/sshd_config.d/password.conf").write_text("PasswordAuthentication yes\nPermitRootLogin yes\n")
    for command in guest.without:
        for folder in ("usr/bin", "usr/local/bin"):
            for path in (root / folder).glob(f"{command}*"):
                path.unlink()
    new_host_key(root)


def new_host_key(root: Path) -> str:
    """Give the root a fresh ed25519 host key, and return its public line."""
    key = root / "etc/ssh/ssh_host_ed25519_key"
    for old in (key, key.with_suffix(".pub")):
        old.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return key.with_suffix(".pub").read_text().strip()


def _add_user(root: Path, guest: Guest) -> None:
    if guest.user != "root":
        subprocess.run(["chroot", str(root), "useradd", "-m", "-s", "/bin/bash", guest.user], check=True)
    if guest.password:
        line = f"{guest.user}:{guest.password}\n"
        subprocess.run(["chroot", str(root), "chpasswd"], input=line, text=True, check=True)
    if guest.user != "root" and guest.sudo != "none":
        rule = "NOPASSWD: ALL" if guest.sudo == "nopasswd" else "ALL"
        sudoers = root / "etc/sudoers.d" / "lab"
        sudoers.write_text(f"{guest.user} ALL=(ALL:ALL) {rule}\n")
        sudoers.chmod(0o440)


def _authorize(root: Path, guest: Guest) -> None:
    home = "root" if guest.user == "root" else f"home/{guest.user}"
    folder = root / home / ".ssh"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "authorized_keys").write_text(f"{guest.public_key}\n")
    owner = f"{guest.user}:"
    subprocess.run(["chroot", str(root), "chown", "-R", owner, f"/{home}/.ssh"], check=True)
