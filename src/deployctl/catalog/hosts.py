"""The user's own machines, as inventory/hosts.yml lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from deployctl.catalog.base import Entry

# A leading dash would reach ssh as an option; whitespace, quotes, braces and shell characters have no place in these:
# ssh_config, a shell and Jinja would read them as code.
USER = r"[A-Za-z_][A-Za-z0-9._-]{0,63}"
NAME_OR_IPV4 = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})"
IPV6 = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9._-]+)?"
FINGERPRINT = r"SHA256:[A-Za-z0-9+/]{43}"
WHENCE = r"ask|env:[A-Za-z_][A-Za-z0-9_]*|fd:[0-9]{1,4}"
_PATH = r"[^%\"'`${}\\\x00-\x1f\x7f]+"
# systemd's lists of paths are split at spaces, and ":" or "%" mean something to it.
_MODELS_DIR = r"(?:/[A-Za-z0-9_@+=][A-Za-z0-9._@+=-]*)+/?"
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "tmp")
_OTHERS = ("home", "media", "mnt", "opt", "srv", "usr", "usr/local", "usr/share", "var", "var/lib", "var/tmp")


def _like(pattern: str, words: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(words)
        return value

    return AfterValidator(check)


def _plain(path: Path) -> Path:
    if not re.fullmatch(_PATH, str(path)):
        raise ValueError("ssh and Ansible would read some of its characters as code")
    return path


def check_models_dir(text: str) -> str:
    """Return a models directory as it is used, without a slash at its end; raises ValueError for one that cannot be."""
    if not re.fullmatch(_MODELS_DIR, text):
        raise ValueError("not an absolute path of letters, digits and ._@+=-")
    path = text.rstrip("/")
    first = path.split("/")[1]
    if first in _SYSTEM or path[1:] in _OTHERS:
        raise ValueError("the system's own: name a folder for models alone, such as /srv/models")
    return path


def check_mirror(text: str) -> str:
    """Return a mirror's address without a slash at its end; raises ValueError for anything else, secrets included."""
    parts = urlsplit(text)
    plain = re.fullmatch(r"https?://[A-Za-z0-9._:\[\]-]+(?:/[A-Za-z0-9._~+/-]*)?", text)
    if not plain or not parts.hostname or parts.port == 0:
        raise ValueError("not the address of a mirror: http:// or https://, a host and a path, no password, no query")
    return text.rstrip("/")


ModelsDir = Annotated[str, AfterValidator(check_models_dir)]
Source = Annotated[str, _like(WHENCE, "no secrets here: write ask, env:NAME or fd:N, where the secret is to come from")]


class HostEntry(Entry):
    """How to reach one machine by SSH, and the plan that it embodies; or that it generates load (``loadgen``).

    ``models_dir`` is where models are kept there, ``ollama_mirror`` where it gets Ollama's releases from.
    """

    name: str
    address: Annotated[
        str, _like(f"{NAME_OR_IPV4}|{IPV6}", "not a host name or an IP address (IPv6 goes without brackets)")
    ]
    port: int = Field(default=22, ge=1, le=65535)
    user: Annotated[str, _like(USER, "not a user name")] = "root"
    key_file: Annotated[Path, AfterValidator(_plain)] | None = None
    passphrase: Source | None = None
    password: Source | None = None
    sudo_password: Source | None = None
    host_key: (
        Annotated[str, _like(FINGERPRINT, "not a fingerprint such as `ssh-keygen -l` prints: SHA256:…")] | None
    ) = None
    jump: str | None = Field(default=None, min_length=1)
    plan: str | None = None
    python: Annotated[str, _like(r"/[A-Za-z0-9._/+-]+", "not the absolute path of an interpreter")] | None = None
    become: bool = True
    models_dir: ModelsDir | None = None
    ollama_mirror: Annotated[str, AfterValidator(check_mirror)] | None = None
    loadgen: bool = False
