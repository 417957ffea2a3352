"""Passwords and passphrases: where they come from, and a holder that no log and no traceback can show."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from deployctl.catalog.hosts import WHENCE
from deployctl.errors import UsageError

AskSecret = Callable[[str], str]
HOW = "ask (a prompt), env:NAME (a variable) or fd:N (a file descriptor)"


@dataclass(frozen=True)
class Secrets:
    """What opens a host besides a plain key; None where there is none. Never compared, never printed."""

    passphrase: str | None = field(default=None, repr=False, compare=False)
    password: str | None = field(default=None, repr=False, compare=False)
    sudo: str | None = field(default=None, repr=False, compare=False)

    @property
    def for_ssh(self) -> bool:
        """Whether an ssh client may have to ask for something."""
        return self.passphrase is not None or self.password is not None


class SecretReader:
    """Reads secrets from their sources, each source once: a descriptor has one end, a person little patience."""

    def __init__(self, ask: AskSecret | None) -> None:
        self.ask = ask
        self._read: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()  # several hosts may be reached at once, and a person can answer one question

    def read(self, source: str | None, what: str) -> str | None:
        """Return the secret, or None without a source; ``what`` is the question. Raises UsageError."""
        if source is None:
            return None
        key = (source, what if source == "ask" else "")
        with self._lock:
            if key not in self._read:
                self._read[key] = self._fetch(source, what)
            return self._read[key]

    def _fetch(self, source: str, what: str) -> str:
        if not re.fullmatch(WHENCE, source):
            raise UsageError(f"{what}: that is no source of a secret", hint=f"give {HOW}, never the secret itself")
        kind, _, name = source.partition(":")
        if kind == "ask":
            if self.ask is None:
                raise UsageError(f"{what}: nobody can be asked here", hint="use env:NAME or fd:N")
            return self.ask(what)
        if kind == "env":
            try:
                return os.environ.pop(name)  # no child of ours inherits it
            except KeyError:
                raise UsageError(f"{what}: the variable {name} is not set", hint=f"export {name}") from None
        try:
            with os.fdopen(int(name), "r", encoding="utf-8", closefd=False) as stream:
                return stream.read().removesuffix("\n")
        except (OSError, ValueError, UnicodeDecodeError) as error:
            raise UsageError(f"{what}: file descriptor {name} cannot be read: {error}") from None
