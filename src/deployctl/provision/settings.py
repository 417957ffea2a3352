"""The deployment: one Ollama and one variant on one host, with every setting that matters pinned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Ollama's settings, always explicit (bytes, tokens, counts). They are what the drop-in renders."""

    slots: int
    context: int  # tokens per slot
    threads: int | None = None  # None: leave it to the engine (GPU hosts)
    keep_alive: str = "-1"
    flash_attention: bool = True
    kv_cache_type: str = "f16"
    prompt_cache_mib: int = 0  # LLAMA_ARG_CACHE_RAM
    max_queue: int = 512
    load_timeout: str = "10m"
    port: int = 11434  # on the host's loopback
    models_dir: str | None = None  # None: below the home of whoever runs the server


@dataclass(frozen=True)
class Source:
    """Where the engine comes from: a local archive in Ollama's release layout, or an official version.

    ``sha256`` is checked before anything on the host is touched; None only for a local archive (then it is computed).
    """

    engine: str  # "ollama" | "embedded"
    version: str
    archive: Path | None = None
    url: str | None = None
    sha256: str | None = None
