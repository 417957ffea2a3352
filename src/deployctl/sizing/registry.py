"""Asks a model registry (Ollama's, or a mirror) how large a model is and how it is built, without its weights.

The protocol is the OCI distribution's: a manifest lists layers with their sizes; a blob answers Range requests, so that
the header of the GGUF file can be read alone.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from deployctl.catalog.models import ModelEntry, Variant
from deployctl.errors import ModelUnavailable
from deployctl.sizing.gguf import model_info, read_header
from deployctl.sizing.show import from_show
from deployctl.sizing.weights import file_bytes

DEFAULT = "https://registry.ollama.ai"
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
WEIGHTS = "application/vnd.ollama.image.model"
PROJECTOR = "application/vnd.ollama.image.projector"

MOST_MANIFEST = 1024**2
MOST_CONFIG = 1024**2
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class RegistryUnreachable(ModelUnavailable):
    """The registry does not answer, or not as a registry does; the model may well exist."""


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Blobs are often redirected to a store of files; never from TLS to plain HTTP."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Refuse the downgrade."""
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise urllib.error.URLError("it redirects to plain HTTP")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SafeRedirects)


@dataclass(frozen=True)
class Name:
    """A reference taken apart: registry (None: the configured one), namespace, model and tag."""

    registry: str | None
    namespace: str
    model: str
    tag: str

    @classmethod
    def parse(cls, reference: str) -> Name:
        """Read ``[host[:port]/][namespace/]model[:tag]``; raises ModelUnavailable for anything else."""
        path, _, last = reference.strip().rpartition("/")
        model, _, tag = last.partition(":")
        parts = path.split("/") if path else []
        host = parts.pop(0) if parts and (len(parts) > 1 or re.search(r"[.:]|^localhost$", parts[0])) else None
        namespace = "/".join(parts) or "library"
        if not all(_PART.fullmatch(part) for part in (*namespace.split("/"), model, tag or "latest")):
            raise ModelUnavailable(f"not a model reference: {reference!r}", hint="write name:tag, such as llama3.1:8b")
        return cls(host, namespace, model, tag or "latest")


@dataclass(frozen=True)
class Manifest:
    """What a registry says of a model: digest and bytes of the weights, bytes of a projector, and its configuration."""

    digest: str
    weights: int
    projector: int
    total: int
    quantization: str | None


class Registry:
    """One registry by its address; ``http://`` for a mirror without TLS. ``timeout`` is in seconds, per request."""

    def __init__(self, address: str = DEFAULT, *, timeout: float = 5.0) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ModelUnavailable(f"not the address of a registry: {address!r}", hint=f"write it like {DEFAULT}")
        self.address = address.rstrip("/")
        self._timeout = timeout

    def manifest(self, reference: str, *, configuration: bool = True) -> Manifest:
        """Return what the registry has under ``reference``; without ``configuration`` its quantization is left out.

        Raises ModelUnavailable for a name or tag that does not exist and for a senseless answer, RegistryUnreachable
        when the registry does not answer.
        """
        name = Name.parse(reference)
        base = self._base(name)
        body = self._get(f"{base}/manifests/{name.tag}", reference, most=MOST_MANIFEST, accept=MANIFEST_TYPE)
        try:
            document = json.loads(body)
            layers = [_layer(layer) for layer in document["layers"]]
            config = _layer(document["config"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelUnavailable(f"{reference}: the registry's manifest makes no sense: {error}") from error
        weights = [layer for layer in layers if layer[0] == WEIGHTS]
        if not weights:
            raise ModelUnavailable(f"{reference}: the registry's manifest lists no weights")
        _, digest, size = max(weights, key=lambda layer: layer[2])
        return Manifest(
            digest=digest,
            weights=size,
            projector=sum(layer[2] for layer in layers if layer[0] == PROJECTOR),
            total=sum(layer[2] for layer in layers),
            quantization=self._quantization(base, config, reference) if configuration else None,
        )

    def facts(self, reference: str) -> ModelEntry:
        """Return the model's facts from its manifest and the header of its weights. Raises as `manifest` does."""
        found = self.manifest(reference)
        url = f"{self._base(Name.parse(reference))}/blobs/{found.digest}"

        def source(offset: int, length: int) -> bytes:
            last = min(offset + length, found.weights) - 1
            return (
                b""
                if last < offset
                else self._get(url, reference, most=length, span=(offset, last), size=found.weights)
            )

        header = read_header(source, name=reference, size=found.weights, facts_only=True)
        entry = from_show(model_info(header), name=reference, size=found.weights, quantization=found.quantization)
        needed = file_bytes(entry, entry.default)
        if not 0.5 <= found.weights / needed <= 2:
            raise ModelUnavailable(
                f"{reference}: the registry's manifest says {found.weights} bytes, but such a model in "
                f"{entry.default} needs about {needed}"
            )
        variant = entry.variants[entry.default].model_copy(
            update={"digest": found.digest, "source": f"manifest of {self.address}"}
        )
        changes: dict[str, Any] = {
            "projector_bytes": found.projector,
            "source": f"manifest and GGUF header of {self.address}",
            "variants": {entry.default: variant},
        }
        return entry.model_copy(update=changes)

    def variant(self, reference: str, *, tag: str | None = None) -> Variant:
        """Return the exact size of one variant from its manifest alone. Raises as `manifest` does."""
        found = self.manifest(reference, configuration=False)
        return Variant(bytes=found.weights, tag=tag, digest=found.digest, source=f"manifest of {self.address}")

    def _base(self, name: Name) -> str:
        """Return the address of a model; another registry than the configured one is always spoken to over TLS."""
        own = name.registry in (None, urlsplit(self.address).netloc)
        address = self.address if own else f"https://{name.registry}"
        return f"{address}/v2/{name.namespace}/{name.model}"

    def _quantization(self, base: str, config: tuple[str, str, int], reference: str) -> str | None:
        try:
            body = self._get(f"{base}/blobs/{config[1]}", reference, most=MOST_CONFIG)
            document = json.loads(body)
        except (ValueError, ModelUnavailable):
            return None  # the header's own file type decides
        kind = document.get("file_type") if isinstance(document, dict) else None
        return kind if isinstance(kind, str) else None

    def _get(
        self,
        url: str,
        reference: str,
        *,
        most: int,
        accept: str | None = None,
        span: tuple[int, int] | None = None,
        size: int | None = None,
    ) -> bytes:
        headers = {"User-Agent": "deployctl"}
        if accept:
            headers["Accept"] = accept
        if span:
            headers["Range"] = f"bytes={span[0]}-{span[1]}"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
        try:
            with _OPENER.open(request, timeout=self._timeout) as answer:
                if span and answer.status != 206 and span[0] > 0:
                    raise RegistryUnreachable(f"the registry at {self.address} ignores Range requests")
                stated = answer.headers.get("Content-Range", "").rpartition("/")[2]
                if size is not None and stated.isdecimal() and int(stated) != size:
                    raise ModelUnavailable(
                        f"{reference}: the registry's manifest says {size} bytes, but its file has {stated}"
                    )
                body: bytes = answer.read(most + 1)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (400, 401, 403, 404):
                raise ModelUnavailable(
                    f"the registry at {self.address} has no model {reference} (HTTP {error.code})",
                    hint="deployctl models",
                ) from error
            raise RegistryUnreachable(f"the registry at {self.address} answers HTTP {error.code}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RegistryUnreachable(f"the registry at {self.address} cannot be reached: {reason}") from error
        if span:
            return body[: span[1] - span[0] + 1]
        if len(body) > most:
            raise ModelUnavailable(f"{reference}: the registry's answer is longer than {most} bytes")
        return body


def _layer(layer: Mapping[str, Any]) -> tuple[str, str, int]:
    kind, digest, size = layer["mediaType"], layer["digest"], layer["size"]
    if not isinstance(kind, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValueError("a layer without a sound digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 45:
        raise ValueError(f"a layer of {size!r} bytes")
    return kind, digest, size
