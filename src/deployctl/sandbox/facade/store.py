"""Models on disk in Ollama's layout: ``blobs/sha256-…`` and ``manifests/<registry>/<namespace>/<name>/<tag>``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from .errors import ApiError, not_found
from .gguf import Header, read_header

DEFAULT_REGISTRY = "registry.ollama.ai"
_DEFAULTS = (DEFAULT_REGISTRY, "library", "latest")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.ollama.image."


@dataclass(frozen=True)
class Name:
    """A fully qualified model name."""

    registry: str
    namespace: str
    model: str
    tag: str

    @property
    def short(self) -> str:
        """The name as people write it: what equals the defaults is left out, the tag never is."""
        prefix = "" if self.namespace == _DEFAULTS[1] else f"{self.namespace}/"
        if self.registry != _DEFAULTS[0]:
            prefix = f"{self.registry}/{self.namespace}/"
        return f"{prefix}{self.model}:{self.tag}"


def parse_name(text: str) -> Name | None:
    """Read ``[[registry/]namespace/]model[:tag]``; None when it is no valid name."""
    path, slash, rest = text.rpartition("/")
    model, colon, tag = rest.partition(":")
    parts = path.split("/") if path else []
    if len(parts) > 2 or (slash and not path) or (colon and not tag):
        return None
    registry = parts[0] if len(parts) == 2 else _DEFAULTS[0]
    namespace = parts[-1] if parts else _DEFAULTS[1]
    name = Name(registry, namespace, model, tag or _DEFAULTS[2])
    plain = (name.namespace, name.model, name.tag)
    if not _PART.fullmatch(name.registry) or any(":" in part or not _PART.fullmatch(part) for part in plain):
        return None
    return name


@dataclass(frozen=True)
class Model:
    """One installed model: its manifest's digest, its weights, and what Ollama calls its configuration."""

    name: Name
    digest: str  # of the manifest, hexadecimal
    size: int  # bytes of all layers
    modified: str
    weights: str  # path of the GGUF blob
    weights_digest: str
    config: Mapping[str, Any]
    template: str
    system: str

    @property
    def details(self) -> dict[str, Any]:
        """The ``details`` of /api/tags, /api/ps and /api/show."""
        return {
            "parent_model": "",
            "format": self.config.get("model_format", "gguf"),
            "family": self.config.get("model_family", ""),
            "families": self.config.get("model_families", []),
            "parameter_size": self.config.get("model_type", ""),
            "quantization_level": self.config.get("file_type", ""),
        }


def human_number(count: int) -> str:
    """Render a parameter count as Ollama does: 268.10M, 8.0B."""
    for unit, letter in ((10**12, "T"), (10**9, "B")):
        if count >= unit:
            return f"{count / unit:.1f}{letter}"
    for unit, letter in ((10**6, "M"), (10**3, "K")):
        if count >= unit:
            return f"{count / unit:.2f}{letter}"
    return str(count)


class BlobWriter:
    """Receives one blob's bytes; ``finish`` checks the digest and moves it into place."""

    def __init__(self, target: str, digest: str) -> None:
        self._target, self._digest = target, digest
        self._partial = f"{target}-partial-{os.getpid()}-{id(self)}"
        self._file = open(self._partial, "wb")  # noqa: SIM115 - lives as long as the upload
        self._hash = hashlib.sha256()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        self._hash.update(data)
        self._file.write(data)

    def finish(self) -> None:
        """Keep the blob; raises ApiError 400 when its digest is not the announced one."""
        self._file.close()
        actual = f"sha256:{self._hash.hexdigest()}"
        if actual != self._digest:
            self.abort()
            raise ApiError(400, f'digest mismatch, expected "{self._digest}", got "{actual}"')
        os.replace(self._partial, self._target)

    def abort(self) -> None:
        """Drop what came so far."""
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)


class Store:
    """The models folder. Every call reads the disk: it is the only truth, and requests are few."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._headers: dict[str, Header] = {}
        os.makedirs(os.path.join(root, "blobs"), exist_ok=True)
        os.makedirs(os.path.join(root, "manifests"), exist_ok=True)

    def blob_path(self, digest: str) -> str:
        """Return where a blob is or would be; raises ApiError 400 for what is no digest."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise ApiError(400, "invalid digest format")
        return os.path.join(self.root, "blobs", f"sha256-{match[1].lower()}")

    def _manifest_path(self, name: Name) -> str:
        return os.path.join(self.root, "manifests", name.registry, name.namespace, name.model, name.tag)

    def open_blob(self, digest: str) -> BlobWriter:
        """Start an upload."""
        return BlobWriter(self.blob_path(digest), digest)

    def header(self, model: Model) -> Header:
        """Return the GGUF header of the model's weights, read once per weights file."""
        if model.weights_digest not in self._headers:
            self._headers[model.weights_digest] = read_header(model.weights)
        return self._headers[model.weights_digest]

    def _add_blob(self, data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        path = os.path.join(self.root, "blobs", f"sha256-{digest}")
        if not os.path.exists(path):
            _write_atomically(path, data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def create(self, name: Name, weights_digest: str, *, template: str = "", system: str = "") -> None:
        """Register weights that were uploaded before. Raises ApiError when they are missing or no GGUF file."""
        path = self.blob_path(weights_digest)
        if not os.path.isfile(path):
            raise ApiError(400, f'blob "{weights_digest}" not found')
        try:
            header = read_header(path)
        except ValueError as error:
            raise ApiError(400, f"unsupported model file: {error}") from error
        config = {
            "model_format": "gguf",
            "model_family": header.architecture,
            "model_families": [header.architecture],
            "model_type": human_number(header.parameters),
            "file_type": header.file_type,
            "architecture": "amd64",
            "os": "linux",
        }
        layers = [{"mediaType": f"{_LAYER}model", "digest": weights_digest, "size": os.path.getsize(path)}]
        if template:
            layers.append(self._add_blob(template.encode(), f"{_LAYER}template"))
        if system:
            layers.append(self._add_blob(system.encode(), f"{_LAYER}system"))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self._add_blob(json.dumps(config).encode(), _CONFIG_TYPE),
            "layers": layers,
        }
        self.install(name, json.dumps(manifest).encode())

    def install(self, name: Name, manifest: bytes) -> None:
        """Register a model whose blobs are there, by its manifest as a registry has it."""
        target = self._manifest_path(name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write_atomically(target, manifest)

    def has(self, name: Name) -> bool:
        """Say whether a model of this name is registered."""
        return os.path.isfile(self._manifest_path(name))

    def get(self, text: str) -> Model:
        """Return an installed model; raises ApiError 404 for any other name."""
        name = parse_name(text)
        if name is None:
            raise not_found(text)
        try:
            return self._read(name)
        except FileNotFoundError:
            raise not_found(text) from None

    def _read(self, name: Name) -> Model:
        path = self._manifest_path(name)
        with open(path, "rb") as file:
            raw = file.read()
        manifest = json.loads(raw)
        blobs = {layer["mediaType"].rpartition(".")[2]: layer for layer in manifest["layers"]}
        with open(self.blob_path(manifest["config"]["digest"]), "rb") as file:
            config = json.loads(file.read())

        def text(kind: str) -> str:
            if kind not in blobs:
                return ""
            with open(self.blob_path(blobs[kind]["digest"]), encoding="utf-8") as file:
                return file.read()

        modified = datetime.fromtimestamp(os.path.getmtime(path), timezone.utc)
        return Model(
            name=name,
            digest=hashlib.sha256(raw).hexdigest(),
            size=manifest["config"]["size"] + sum(layer["size"] for layer in manifest["layers"]),
            modified=modified.isoformat(),
            weights=self.blob_path(blobs["model"]["digest"]),
            weights_digest=blobs["model"]["digest"],
            config=config,
            template=text("template"),
            system=text("system"),
        )

    def _names(self) -> Iterator[Name]:
        base = os.path.join(self.root, "manifests")
        for folder, _, files in os.walk(base):
            parts = os.path.relpath(folder, base).split(os.sep)
            if len(parts) == 3:
                yield from (Name(parts[0], parts[1], parts[2], tag) for tag in files)

    def list(self) -> list[Model]:
        """Return every installed model, the newest first; what cannot be read is left out."""
        models = []
        for name in self._names():
            with contextlib.suppress(OSError, ValueError, KeyError):
                models.append(self._read(name))
        return sorted(models, key=lambda model: model.modified, reverse=True)

    def copy(self, source: str, destination: Name) -> None:
        """Give a model a second name."""
        with open(self._manifest_path(self.get(source).name), "rb") as file:
            self.install(destination, file.read())

    def delete(self, text: str) -> Model:
        """Remove a model, and the blobs that no other model uses. Returns what it was."""
        model = self.get(text)
        path = self._manifest_path(model.name)
        mine = _digests(path)
        os.unlink(path)
        for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        kept = {digest for name in self._names() for digest in _digests(self._manifest_path(name))}
        for digest in mine - kept:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.blob_path(digest))
        return model


def _digests(manifest_path: str) -> set[str]:
    with open(manifest_path, "rb") as file:
        manifest = json.loads(file.read())
    return {str(manifest["config"]["digest"]), *(str(layer["digest"]) for layer in manifest["layers"])}


def _write_atomically(path: str, data: bytes) -> None:
    partial = f"{path}-partial-{os.getpid()}"
    with open(partial, "wb") as file:
        file.write(data)
    os.replace(partial, path)
