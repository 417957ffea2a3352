"""Read a host as people type it: ``user@address[:port]``, IPv6 literals in brackets."""

from __future__ import annotations

import re
from pathlib import Path

from deployctl.catalog.hosts import IPV6, NAME_OR_IPV4, USER
from deployctl.errors import UsageError
from deployctl.hosts.target import Target

_HINT = "write it as user@address, user@address:port or user@[2001:db8::1]:port"


def parse_host(text: str, *, known_hosts: Path, key_file: Path | None = None) -> Target:
    """Return the Target for ``[user@]address[:port]``; the user defaults to root, the port to 22.

    Root needs no sudo, every other user does. Raises UsageError for anything that is not such an address.
    """
    user, at, rest = text.strip().rpartition("@")
    if at and not re.fullmatch(USER, user):
        raise UsageError(f"not a user name: {user!r} in {text!r}", hint=_HINT)
    address, port = _split_port(rest, text)
    if not re.fullmatch(f"{NAME_OR_IPV4}|{IPV6}", address):
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
        if not bracket or (tail and not tail.startswith(":")) or not re.fullmatch(IPV6, address):
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
