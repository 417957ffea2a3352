"""Host keys that we know: one file of our own in OpenSSH's format, only ever appended to.

The same file is given to paramiko, to OpenSSH and to Ansible, so that no client can disagree about who a host is.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deployctl.errors import HostKeyChanged
from deployctl.hosts.target import Target

Policy = Literal["ask", "accept-new", "refuse"]


@dataclass(frozen=True)
class HostKey:
    """A public host key: its type (``ssh-ed25519``, …) and its raw blob, and the line of the file it stands on."""

    kind: str
    blob: bytes
    line: int = 0
    revoked: bool = False

    @property
    def fingerprint(self) -> str:
        """``SHA256:…`` as ``ssh-keygen -l`` prints it (base64 without padding)."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def same(self, other: HostKey) -> bool:
        """Say whether both are the same key."""
        return self.kind == other.kind and hmac.compare_digest(self.blob, other.blob)


class KnownHosts:
    """OpenSSH's known_hosts format (sshd(8)), plain or hashed names, ``@revoked`` marks; mode 0600.

    Lines are appended under a lock in one write and never rewritten, so concurrent runs lose none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def lookup(self, target: Target) -> tuple[HostKey, ...]:
        """Return every key filed for the target's ``known_hosts_name``; an absent file knows nothing."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ()
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            key = _parse(line, number, target.known_hosts_name)
            if key is not None:
                found.append(key)
        return tuple(found)

    def add(self, target: Target, key: HostKey) -> bool:
        """File ``key`` for the target: True when a line was appended, False when it was there already.

        Raises HostKeyChanged when another key is on file, so a concurrent run cannot slip a second identity in.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.fchmod(file.fileno(), 0o600)
            known = self.lookup(target)
            if any(key.same(other) for other in known):
                return False
            if known:
                raise changed(self, target, key, known)
            size = file.seek(0, os.SEEK_END)
            lead = b""
            if size:
                file.seek(size - 1)
                lead = b"" if file.read(1) == b"\n" else b"\n"
            name = target.known_hosts_name
            file.write(lead + f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n".encode())
        return True


def changed(store: KnownHosts, target: Target, key: HostKey, known: tuple[HostKey, ...]) -> HostKeyChanged:
    """Build the hard stop for a host that presents another key than the ones on file."""
    on_file = ", ".join(f"{old.kind} {old.fingerprint} (line {old.line})" for old in known)
    return HostKeyChanged(
        f"{target} presents the host key {key.kind} {key.fingerprint}, but {store.path} knows it as {on_file}; "
        "somebody may be in between, so nothing was sent",
        hint=(
            "if the host was reinstalled, compare the fingerprint on its console, then forget the old key: "
            f"ssh-keygen -f '{store.path}' -R '{target.known_hosts_name}'"
        ),
    )


def _parse(line: str, number: int, name: str) -> HostKey | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3 or marker not in ("", "@revoked") or not _names(fields[0], name):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except binascii.Error:
        return None
    return HostKey(kind=fields[1], blob=blob, line=number, revoked=bool(marker))


def _names(field: str, name: str) -> bool:
    if field.startswith("|1|"):  # HashKnownHosts: |1|base64(salt)|base64(HMAC-SHA1(salt, name))
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in field[3:].split("|"))
        except (ValueError, binascii.Error):
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    return name in field.split(",")
