"""Read a host as people type it: ``user@address[:port]``, IPv6 literals in brackets."""

from __future__ import annotations

import re
from pathlib import Path

from deployctl.errors import UsageError
from deployctl.hosts.target import Target

# A leading dash would reach ssh as an option; whitespace and shell characters have no place in a name or an address.
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?")
_HINT = "write it as user@address, user@address:port or user@[2001:db8::1]:port"


def parse_host(text: str, *, known_hosts: Path, key_file: Path | None = None) -> Target:
    """Return the Target for ``[user@]address[:port]``; the user defaults to root, the port to 22.

    Root needs no sudo, every other user does. Raises UsageError for anything that is not such an address.
    """
    user, at, rest = text.strip().rpartition("@")
    if at and not _USER.fullmatch(user):
        raise UsageError(f"not a user name: {user!r} in {text!r}", hint=_HINT)
    address, port = _split_port(rest, text)
    if not (_ADDRESS.fullmatch(address) or _IPV6.fullmatch(address)):
        raise UsageError(f"not an address: {address!r} in {text!r}", hint=_HINT)
    user = user or "root"
    return Target(
        name=address,
        address=address,
        port=port,
        user=user,
        known_hosts=known_hosts,
        key_file=key_file,
        become=user != "root",
    )


def _split_port(rest: str, text: str) -> tuple[str, int]:
    if rest.startswith("["):
        address, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")) or not _IPV6.fullmatch(address):
            raise UsageError(f"not an address: {rest!r} in {text!r}", hint=_HINT)
        port = tail[1:] if tail else "22"
    elif rest.count(":") > 1:  # a bare IPv6 literal cannot carry a port
        return rest, 22
    else:
        address, colon, port = rest.partition(":")
        port = port if colon else "22"
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"not a port: {port!r} in {text!r}", hint=_HINT)
    return address, int(port)
