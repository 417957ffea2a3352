"""From the options of a command to what the jobs are asked for."""

from __future__ import annotations

import os
import re
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from deployctl.cli.context import Globals
from deployctl.errors import UsageError
from deployctl.hosts.secrets import SecretReader
from deployctl.jobs.wanted import Generator, Place, Wanted

# Where an option's name differs from the field that it fills.
RENAMED = {"key": "key_file", "ollama_archive": "archive"}
_ASKING = threading.Lock()  # one question at a time, however many hosts are being reached
ENGINES = ("ollama", "embedded")
PROTOCOLS = ("ollama", "openai")
KV_TYPES = ("f16", "q8_0", "q4_0")


def wanted_of(ctx: typer.Context) -> Wanted:
    """Collect the order from the command's options; raises UsageError for a value that no choice has."""
    given = {RENAMED.get(name, name): value for name, value in ctx.params.items()}
    _one_of("--engine", given.get("engine"), ENGINES)
    _one_of("--kv-type", given.get("kv_type"), KV_TYPES)
    for option, path in (
        ("--gguf", given.get("gguf")),
        ("--ollama-archive", given.get("archive")),
        ("--key", given.get("key_file")),
    ):
        if path is not None and not path.is_file():
            raise UsageError(f"{option} {path} is not a file")
    _engine_of(given)
    weights = given.get("gguf")
    if weights is not None and not is_gguf(weights):
        raise UsageError(f"--gguf {weights} is not a GGUF file", hint="it has to begin with the letters GGUF")
    known = {field.name for field in fields(Wanted)}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if name in known}
    chosen.setdefault("model", "")
    chosen["generator"] = _generator(given)
    return Wanted(**chosen, key_policy="accept-new" if given.get("accept_new") else _policy())


def _engine_of(given: dict[str, Any]) -> None:
    """Check and tidy what says where the engine comes from and where its models go."""
    from deployctl.catalog.hosts import check_mirror, check_models_dir

    for name, option, check in (
        ("ollama_mirror", "--ollama-mirror", check_mirror),
        ("models_dir", "--models-dir", check_models_dir),
        ("ollama_sha256", "--ollama-sha256", _checksum),
    ):
        if given.get(name) is not None:
            try:
                given[name] = check(given[name])
            except ValueError as error:
                # The value may hold a password: it is not repeated.
                raise UsageError(f"{option}: {error}") from None
    if given.get("ollama_mirror") and given.get("archive"):
        raise UsageError("--ollama-archive and --ollama-mirror exclude each other")
    if given.get("engine") == "embedded" and (given.get("ollama_mirror") or given.get("ollama_sha256")):
        raise UsageError("--engine embedded comes from here: it has no --ollama-mirror and no --ollama-sha256")


def _checksum(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError("not a SHA-256: 64 hexadecimal digits, as sha256sum prints them")
    return text.lower()


def _generator(given: dict[str, Any]) -> Generator:
    protocol: Any = given.get("protocol") or "ollama"
    _one_of("--protocol", protocol, PROTOCOLS)
    return Generator(given.get("workers") or 0, tuple(given.get("loadgen") or ()), protocol)


def is_gguf(path: Path) -> bool:
    """Say whether the file begins as a GGUF file does."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"GGUF"
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def place_of(world: Globals) -> Place:
    """Where the jobs keep things."""
    secretly = _ask_secret if _policy() == "ask" else None
    return Place(
        data_dir=world.data_dir,
        cache_dir=world.cache_dir,
        ask=_ask,
        ask_secret=secretly,
        secrets=SecretReader(secretly),
    )


def _ask(question: str) -> bool:
    with _ASKING:
        return typer.confirm(question, err=True)


def _ask_secret(question: str) -> str:
    with _ASKING:
        return str(typer.prompt(question, hide_input=True, err=True, default="", show_default=False))


def _policy() -> Any:
    # Nobody is there to answer a question unless both ends are a terminal.
    asking = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty() and not os.environ.get("CI")
    return "ask" if asking else "refuse"


def _one_of(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise UsageError(f"{option} {value}: not one of {', '.join(choices)}")
