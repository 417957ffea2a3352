"""Packs what a Locust worker on another machine needs into one archive: the packages installed here, and our own code.

    python -m deployctl.load.bundle --cache DIR [--python 3.12 --machine x86_64] [--index-url URL]

A worker speaks its master's own messages, so it gets the master's own versions. For the Python and processor of this
machine the packages are those of this installation and no network is needed; for others pip fetches the same versions
from the index that it is set up for. The archive needs nothing on the other machine but that Python: no pip, no venv.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import deployctl
from deployctl.errors import ProvisionError
from deployctl.resources import shipped_root

NEEDED = ("locust", "numpy", "pydantic", "ruamel.yaml")
COMPLETE = "complete"
"""The archive's last entry: where it is, everything before it was unpacked."""

_RESOURCES = ("loadtests", "inventory")
_KEPT = 3  # archives of other versions that stay in the cache


@dataclass(frozen=True)
class Bundle:
    """An archive for one Python (``3.11``) and machine (``x86_64``). ``id`` names its content, ``sha256`` its bytes."""

    id: str
    path: str
    sha256: str


def here() -> tuple[str, str]:
    """Python version and machine of this process."""
    return "{}.{}".format(*sys.version_info[:2]), platform.machine()


def identity(python: str, machine: str) -> str:
    """Return the id that `build` would give: 16 hex digits over versions, our own code, Python and machine."""
    digest = hashlib.sha256(f"{python} {machine} {deployctl.__version__}\n".encode())
    for name, distribution in sorted(_closure().items()):
        digest.update(f"{name}=={distribution.version}\n".encode())
    for name, path in _own_files():
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def build(cache: Path, python: str, machine: str, index_url: str = "") -> Bundle:
    """Return the archive from ``cache``, made there if it is missing; raises ProvisionError where pip cannot fetch."""
    name = identity(python, machine)
    path = cache / f"loadgen-{name}.tar.gz"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            partial = Path(folder) / path.name
            if (python, machine) == here():
                _write(partial, [*_installed_files(), *_own_files()])
            else:
                _write(partial, [*_fetched_files(python, machine, index_url, Path(folder)), *_own_files()])
            partial.replace(path)
        older = sorted(cache.glob("loadgen-*.tar.gz"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in older[1 + _KEPT :]:
            file.unlink(missing_ok=True)
    with path.open("rb") as stream:
        return Bundle(name, str(path), hashlib.file_digest(stream, "sha256").hexdigest())


def _closure() -> dict[str, metadata.Distribution]:
    """The needed distributions and what they require on this Python, by name."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    open_names = list(NEEDED)
    while open_names:
        distribution = metadata.distribution(open_names.pop())
        name = distribution.metadata["Name"].lower()
        if name in found:
            continue
        found[name] = distribution
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                open_names.append(requirement.name)
    return found


def _installed_files() -> Iterator[tuple[str, Path]]:
    for distribution in _closure().values():
        for file in distribution.files or ():
            if _wanted(file.parts):
                path = Path(str(distribution.locate_file(file)))
                if path.is_file():
                    yield file.as_posix(), path


def _own_files() -> Iterator[tuple[str, Path]]:
    package = Path(deployctl.__file__).parent
    for path in sorted(package.rglob("*.py")):
        if "_resources" not in path.parts:
            yield f"deployctl/{path.relative_to(package).as_posix()}", path
    for folder in _RESOURCES:
        for path in sorted((shipped_root() / folder).rglob("*")):
            if path.is_file() and _wanted(path.parts):
                yield f"deployctl/_resources/{path.relative_to(shipped_root()).as_posix()}", path


def _fetched_files(python: str, machine: str, index_url: str, scratch: Path) -> Iterator[tuple[str, Path]]:
    """The same versions as wheels for another Python, from pip's index."""
    wheels, unpacked = scratch / "wheels", scratch / "unpacked"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    argv += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(wheels)]
    for glibc in ("2_28", "2_17"):
        argv += ["--platform", f"manylinux_{glibc}_{machine}"]
    argv += ["--platform", f"manylinux2014_{machine}", *(["--index-url", index_url] if index_url else [])]
    argv += [f"{name}=={distribution.version}" for name, distribution in _closure().items()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"pip ended with {done.returncode}"]
        raise ProvisionError(
            f"no load generator could be packed for Python {python} on {machine}: {said[0]}",
            hint="let pip reach an index (loadgen_index_url), or use a host with Python " + here()[0],
        )
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)  # noqa: S202 - zipfile keeps what it extracts below the folder
    for path in sorted(unpacked.rglob("*")):
        parts = path.relative_to(unpacked).parts
        if path.is_file() and _wanted(parts) and not parts[0].endswith(".data"):
            yield "/".join(parts), path


def _wanted(parts: tuple[str, ...]) -> bool:
    return not {"..", "tests", "__pycache__"} & set(parts)


def _write(path: Path, files: list[tuple[str, Path]]) -> None:
    """Write a tar archive in which the same files always are the same bytes; the marker of its end comes last."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, source in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = source.stat().st_size
            entry.mode = 0o644
            with source.open("rb") as content:
                archive.addfile(entry, content)
        archive.addfile(tarfile.TarInfo(COMPLETE), io.BytesIO())


def main() -> None:
    """Pack, and print where the archive is as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--python", default=here()[0])
    parser.add_argument("--machine", default=here()[1])
    parser.add_argument("--index-url", default="")
    options = parser.parse_args()
    try:
        bundle = build(options.cache.expanduser(), options.python, options.machine, options.index_url)
    except ProvisionError as error:
        sys.exit(f"{error.message}\n  try: {error.hint}")
    sys.stdout.write(json.dumps(asdict(bundle)) + "\n")


if __name__ == "__main__":
    main()
