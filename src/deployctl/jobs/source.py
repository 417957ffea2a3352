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
SUFFIXES = (".tar.zst", ".tgz", ".tar.gz")
ANSWER_S = 4.0  # how long an official release may take to answer before it counts as out of reach


def choose_source(wanted: Wanted, facts: HostFacts, place: Place, emit: Emit) -> Source:
    """Take the archive that was given, else an official release, else the embedded engine unless Ollama was asked for.

    Raises UsageError for contradictions and ProvisionError when no engine can be had.
    """
    if wanted.archive is not None:
        if wanted.engine == "embedded":
            raise UsageError("--ollama-archive and --engine embedded exclude each other")
        return _local(wanted.archive, wanted.ollama_version, wanted.ollama_sha256)
    if wanted.engine == "embedded":
        return _embedded(facts, place)
    if wanted.ollama_mirror is not None:
        return released(wanted.ollama_mirror, wanted.ollama_version, facts, sha256=wanted.ollama_sha256)
    try:
        return released(RELEASES, wanted.ollama_version, facts, sha256=wanted.ollama_sha256)
    except ProvisionError as error:
        if wanted.engine == "ollama" or wanted.ollama_version is not None or wanted.ollama_sha256 is not None:
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


def _local(path: Path, version: str | None, insisted: str | None) -> Source:
    if not path.is_file():
        raise UsageError(f"--ollama-archive {path} is not a file")
    digest = _sha256(path)
    if insisted not in (None, digest):
        raise UsageError(f"--ollama-archive {path} has the sha256 {digest}, and --ollama-sha256 says {insisted}")
    found = version or _version_in(path.name) or f"archive-{digest[:12]}"
    return Source(engine="ollama", version=found, archive=path.absolute(), sha256=digest)


def released(base: str, version: str | None, facts: HostFacts, *, sha256: str | None = None) -> Source:
    """Find the archive for this host below ``base``, laid out as the official releases; or ``base`` is the archive.

    Its checksum is ``sha256``, else the one in ``sha256sum.txt`` beside it. Raises ProvisionError where neither is to
    be had or they contradict each other, UsageError for what is no version.
    """
    arch = ARCHITECTURES.get(facts.arch)
    if arch is None:
        raise ProvisionError(f"Ollama has no release for {facts.arch}")
    if base.endswith(SUFFIXES):
        folder, _, name = base.rpartition("/")
        names = [name]
        version = version or _version_in(base)
        other = next((word for word in ARCHITECTURES.values() if word != arch and f"-{word}." in name), None)
        if other:
            raise ProvisionError(f"{name} is for {other}, and {facts.hostname} is {arch}")
    else:
        version = _plain(version or PINNED_VERSION)
        folder, names = f"{base}/v{version}", [f"ollama-linux-{arch}{suffix}" for suffix in SUFFIXES[:2]]
    listed = _sums(folder, optional=sha256 is not None)
    name = next((name for name in names if name in listed), names[0] if sha256 else "")
    if not name:
        raise ProvisionError(
            f"{folder}/sha256sum.txt has no checksum for {names[0]}",
            hint="another --ollama-version, or say it: --ollama-sha256 HEX",
        )
    if sha256 and listed.get(name, sha256) != sha256:
        raise ProvisionError(f"{folder} lists {listed[name]} for {name}, and --ollama-sha256 says {sha256}")
    digest = sha256 or listed[name]
    return Source("ollama", version or f"archive-{digest[:12]}", url=f"{folder}/{name}", sha256=digest)


def _sums(folder: str, *, optional: bool) -> dict[str, str]:
    """The checksums that a release publishes, by file name; nothing where it is ``optional`` and cannot be read."""
    import httpx

    try:
        answer = httpx.get(f"{folder}/sha256sum.txt", timeout=ANSWER_S, follow_redirects=True)
    except httpx.HTTPError as error:
        if optional:
            return {}
        where = "the releases of Ollama are" if folder.startswith(RELEASES) else f"{folder} is"
        raise ProvisionError(
            f"{where} out of reach from here ({type(error).__name__})",
            hint="say the checksum if the host can reach it (--ollama-sha256 HEX), or bring one: --ollama-archive FILE",
        ) from error
    if answer.status_code != httpx.codes.OK:
        if optional:
            return {}
        raise ProvisionError(
            f"{folder} has no sha256sum.txt (HTTP {answer.status_code})",
            hint=f"--ollama-version {PINNED_VERSION}, or say the checksum: --ollama-sha256 HEX",
        )
    lines = (line.split() for line in answer.text.splitlines())
    return {
        words[1].lstrip("*").removeprefix("./"): words[0].lower()
        for words in lines
        if len(words) == 2 and re.fullmatch(r"[0-9a-fA-F]{64}", words[0])
    }


def _version_in(name: str) -> str | None:
    named = re.search(r"v?(\d+\.\d+\.\d+[\w.-]*?)(?=[-_/]|\.t|$)", name)
    return named.group(1) if named else None


def _plain(version: str) -> str:
    try:
        version_tuple(version)
    except ValueError as error:
        raise UsageError(f"--ollama-version: {error}", hint=f"write it as {PINNED_VERSION}") from error
    return version.removeprefix("v")


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
