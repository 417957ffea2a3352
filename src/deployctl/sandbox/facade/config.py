"""Ollama's environment variables, read as Ollama reads them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

FOREVER = math.inf
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


def parse_duration(value: str | float) -> float:
    """Read a Go duration (``1h30m``, ``-1s``) or a number of seconds; a negative one means for ever.

    Returns seconds; raises ValueError for anything else.
    """
    if isinstance(value, (int, float)):
        return FOREVER if value < 0 else float(value)
    text = value.strip()
    try:
        return parse_duration(float(text))
    except ValueError:
        pass
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError(f'time: invalid duration "{value}"')
    return parse_duration(sign * sum(float(number) * _UNITS[unit] for number, unit in parts))


@dataclass(frozen=True)
class Config:
    """What the environment asks for. Durations in seconds (``math.inf``: for ever), sizes in tokens."""

    host: str
    port: int
    models: str
    num_parallel: int
    context_length: int
    keep_alive: float
    max_queue: int
    max_loaded: int
    load_timeout: float
    flash_attention: str  # on | off | auto
    kv_cache_type: str
    library: str  # the folder that holds llama-server and its libraries

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - read, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def _parse_host(text: str) -> tuple[str, int]:
    scheme, _, rest = text.rpartition("://")
    default_port = {"http": 80, "https": 443}.get(scheme, 11434)
    rest = rest.partition("/")[0]
    match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]*))(?::(?P<port>\d+))?", rest)
    if match is None:  # a bare IPv6 address
        return rest, default_port
    port = int(match["port"]) if match["port"] else default_port
    return (match["v6"] or match["host"] or "127.0.0.1"), port if port < 65536 else default_port


def find_library(program: str) -> str:
    """Return the folder with ``llama-server`` that belongs to this program: ``lib/ollama`` beside ``bin``."""
    folder = os.path.dirname(os.path.realpath(program))
    candidates = [
        os.path.join(folder, "..", "lib", "ollama"),
        os.path.join(folder, "lib", "ollama"),
        folder,
    ]
    for candidate in candidates:
        if os.path.isfile(os.path.join(candidate, "llama-server")):
            return os.path.realpath(candidate)
    return os.path.realpath(candidates[0])


def read_config(environ: Mapping[str, str], program: str) -> Config:
    """Read the OLLAMA_ variables; a value that cannot be read counts as unset, as with Ollama."""

    def text(name: str) -> str:
        return environ.get(name, "").strip().strip("\"'")

    def number(name: str, default: int) -> int:
        value = text(name)
        return int(value) if value.isdigit() else default

    def duration(name: str, default: float) -> float:
        try:
            return parse_duration(text(name)) if text(name) else default
        except ValueError:
            return default

    host, port = _parse_host(text("OLLAMA_HOST"))
    flash = text("OLLAMA_FLASH_ATTENTION").lower()
    load_timeout = duration("OLLAMA_LOAD_TIMEOUT", 300.0)
    return Config(
        host=host,
        port=port,
        models=text("OLLAMA_MODELS") or os.path.join(os.path.expanduser("~"), ".ollama", "models"),
        num_parallel=max(1, number("OLLAMA_NUM_PARALLEL", 1)),
        context_length=number("OLLAMA_CONTEXT_LENGTH", 0) or 4096,
        keep_alive=duration("OLLAMA_KEEP_ALIVE", 300.0),
        max_queue=number("OLLAMA_MAX_QUEUE", 512),
        max_loaded=number("OLLAMA_MAX_LOADED_MODELS", 0) or 3,
        load_timeout=load_timeout or FOREVER,
        flash_attention="auto" if not flash else "off" if flash in {"0", "f", "false"} else "on",
        kv_cache_type=text("OLLAMA_KV_CACHE_TYPE"),
        library=find_library(program),
    )
