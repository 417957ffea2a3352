"""Which engine is installed, and where its files come from."""

from __future__ import annotations

import re
from pathlib import Path

from deployctl.errors import ModelUnavailable, ProvisionError, UsageError
from deployctl.events import Emit, Warned
from deployctl.hosts.facts import HostFacts
from deployctl.jobs.wanted import Place, Wanted
from deployctl.ollama.client import version_tuple
from deployctl.provision.settings import Source

# The release that the documentation of this version was read against.
PINNED_VERSION = "0.32.15"
RELEASES = "https://github.com/ollama/ollama/releases/download"
ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
ANSWER_S = 4.0  # how long an official release may take to answer before it counts as out of reach


def choose_source(wanted: Wanted, facts: HostFacts, place: Place, emit: Emit) -> Source:
    """Take the archive that was given, else an official release, else the embedded engine unless Ollama was asked for.

    Raises UsageError for contradictions and ProvisionError when no engine can be had.
    """
    if wanted.archive is not None:
        if wanted.engine == "embedded":
            raise UsageError("--ollama-archive and --engine embedded exclude each other")
        return _local(wanted.archive, wanted.ollama_version)
    if wanted.engine == "embedded":
        return _embedded(facts, place)
    try:
        return _official(wanted.ollama_version or PINNED_VERSION, facts)
    except ProvisionError as error:
        if wanted.engine == "ollama" or wanted.ollama_version is not None:
            raise
        emit(Warned(f"{error.message}; taking the embedded engine instead, whose speed is not Ollama's"))
        return _embedded(facts, place)


def choose_gguf(wanted: Wanted, source: Source, place: Place, reference: str) -> Path | None:
    """Return the weights to upload to the host, or None when the host is to pull the model itself."""
    if wanted.gguf is not None:
        if not wanted.gguf.is_file():
            raise UsageError(f"--gguf {wanted.gguf} is not a file")
        return wanted.gguf.absolute()
    if source.engine != "embedded":
        return None
    from deployctl.sandbox import model

    refuse_unshipped(reference)
    return model.gguf_path(place.cache_dir)


def refuse_unshipped(reference: str) -> None:
    """Raise ModelUnavailable for any model but the one that the embedded engine ships."""
    from deployctl.sandbox import model

    if reference != model.MODEL.reference:
        raise ModelUnavailable(
            f"the embedded engine has no {reference}, only {model.MODEL.reference}",
            hint=f"--model {model.MODEL.reference}, or bring the weights: --gguf FILE, or --engine ollama",
        )


def _embedded(facts: HostFacts, place: Place) -> Source:
    from deployctl.sandbox import archive

    if ARCHITECTURES.get(facts.arch) != "amd64":
        raise ProvisionError(
            f"the embedded engine exists for x86_64 only, and {facts.hostname} is {facts.arch}",
            hint="--engine ollama",
        )
    path = archive.build_archive(place.cache_dir)
    return Source(engine="embedded", version=archive.engine_version(), archive=path, sha256=_sha256(path))


def _local(path: Path, version: str | None) -> Source:
    if not path.is_file():
        raise UsageError(f"--ollama-archive {path} is not a file")
    named = re.search(r"v?(\d+\.\d+\.\d+[\w.-]*?)(?=[-_/]|\.t|$)", path.name)
    digest = _sha256(path)
    found = version or (named.group(1) if named else f"archive-{digest[:12]}")
    return Source(engine="ollama", version=found, archive=path.absolute(), sha256=digest)


def _official(version: str, facts: HostFacts) -> Source:
    import httpx

    try:
        version_tuple(version)
    except ValueError as error:
        raise UsageError(f"--ollama-version: {error}", hint="write it as 0.32.15") from error
    arch = ARCHITECTURES.get(facts.arch)
    if arch is None:
        raise ProvisionError(f"Ollama has no release for {facts.arch}")
    version = version.removeprefix("v")
    base, name = f"{RELEASES}/v{version}", f"ollama-linux-{arch}.tar.zst"
    try:
        answer = httpx.get(f"{base}/sha256sum.txt", timeout=ANSWER_S, follow_redirects=True)
    except httpx.HTTPError as error:
        raise ProvisionError(
            f"the releases of Ollama are out of reach from here ({type(error).__name__})",
            hint="download an archive elsewhere and pass it: --ollama-archive FILE",
        ) from error
    if answer.status_code != httpx.codes.OK:
        raise ProvisionError(
            f"Ollama {version} has no release page (HTTP {answer.status_code})", hint="--ollama-version 0.32.15"
        )
    lines = (line.split() for line in answer.text.splitlines() if line)
    sums = {listed.removeprefix("./"): digest for digest, listed in lines}
    for candidate in (name, name.replace(".tar.zst", ".tgz")):
        if candidate in sums:
            return Source(engine="ollama", version=version, url=f"{base}/{candidate}", sha256=sums[candidate])
    raise ProvisionError(f"Ollama {version} publishes no checksum for {name}", hint="--ollama-version 0.32.15")


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
