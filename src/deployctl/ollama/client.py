"""Ollama's HTTP API for control: what is there, what is loaded, load it now. Never on the hot path."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from deployctl.errors import HostUnreachable, MeasurementError, ModelUnavailable

# Below this version any client can read the server's memory (CVE-2026-7482).
OLDEST_SAFE = (0, 17, 1)


@dataclass(frozen=True)
class Installed:
    """A model that the server has: its name, digest, size in bytes and quantization."""

    name: str
    digest: str
    bytes: int
    quantization: str


@dataclass(frozen=True)
class Loaded:
    """A model in memory: total bytes, the bytes of them in VRAM, and the context that one slot has in tokens."""

    name: str
    bytes: int
    vram_bytes: int
    context: int | None


class Server:
    """One Ollama server."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        from ollama import Client

        self.url = url
        self._client = Client(host=url, timeout=timeout_s)
        self._patient = Client(host=url, timeout=900.0)  # a load may take minutes; the server has its own stall limit

    def version(self) -> str:
        """The server's version; raises HostUnreachable when nothing answers as Ollama does."""
        import httpx

        try:
            answer = httpx.get(f"{self.url}/api/version", timeout=10.0)
            answer.raise_for_status()
            return str(answer.json()["version"])
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise HostUnreachable(
                f"no Ollama answers at {self.url}: {error}", hint=f"curl {self.url}/api/version"
            ) from error

    def installed(self) -> tuple[Installed, ...]:
        """Every model that the server has."""
        with self._speaking():
            return tuple(
                Installed(
                    name=str(entry.model),
                    digest=str(entry.digest or ""),
                    bytes=int(entry.size or 0),
                    quantization=str((entry.details.quantization_level if entry.details else None) or ""),
                )
                for entry in self._client.list().models
            )

    def find(self, reference: str) -> Installed:
        """The installed model of that name; raises ModelUnavailable naming the nearest ones."""
        wanted = reference if ":" in reference else f"{reference}:latest"
        there = {model.name: model for model in self.installed()}
        if wanted in there:
            return there[wanted]
        near = get_close_matches(wanted, there, n=3, cutoff=0.4) or sorted(there)[:5]
        has = f"; it has {', '.join(near)}" if near else "; it has no model at all"
        raise ModelUnavailable(
            f"the server at {self.url} has no model {reference!r}{has}", hint=f"ollama pull {reference}"
        )

    def show(self, reference: str) -> Mapping[str, Any]:
        """What ``/api/show`` says in ``model_info``: architecture, layers, heads, lengths."""
        with self._speaking():
            return dict(self._client.show(reference).modelinfo or {})

    def loaded(self) -> tuple[Loaded, ...]:
        """Every model that is in memory now."""
        with self._speaking():
            return tuple(
                Loaded(
                    name=str(entry.model),
                    bytes=int(entry.size or 0),
                    vram_bytes=int(entry.size_vram or 0),
                    context=entry.context_length,
                )
                for entry in self._client.ps().models
            )

    def preload(self, reference: str) -> float:
        """Load the model and keep it loaded; returns the seconds it took. Raises ModelUnavailable if it cannot load."""
        from ollama import ResponseError

        began = time.monotonic()
        with self._speaking():
            try:
                # An empty prompt loads the model and answers nothing.
                self._patient.generate(reference, prompt="", keep_alive=-1)
            except ResponseError as error:
                raise ModelUnavailable(
                    f"{reference} does not load: {error.error}",
                    hint="journalctl -u ollama -n 50 on the host, or ask for fewer slots: --slots 1",
                ) from error
        return time.monotonic() - began

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        import httpx
        from ollama import ResponseError

        try:
            yield
        except ResponseError as error:
            raise HostUnreachable(
                f"the server at {self.url} does not answer as Ollama does: {error.error or error.status_code}"
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # not JSON, or not of Ollama's shape
            raise HostUnreachable(
                f"the server at {self.url} does not answer as Ollama does: {_first_line(error)}"
            ) from error
        except (httpx.HTTPError, ConnectionError) as error:
            raise HostUnreachable(
                f"the server at {self.url} stopped answering: {error or type(error).__name__}"
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def version_tuple(version: str) -> tuple[int, ...]:
    """``0.33.0-rc2`` → (0, 33, 0): the numbers in front; raises ValueError when there are none."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    return tuple(int(part or 0) for part in match.groups())


def refuse_unsafe(version: str) -> None:
    """Refuse to measure a server that leaks its memory; an unparsable version (a build of one's own) passes."""
    try:
        numbers = version_tuple(version)
    except ValueError:
        return
    # 0.0.0 is what a build from source calls itself.
    if (0, 0, 0) < numbers < OLDEST_SAFE:
        oldest = ".".join(map(str, OLDEST_SAFE))
        raise MeasurementError(
            f"Ollama {version} is older than {oldest} and leaks its memory to any client (CVE-2026-7482)",
            hint="install a newer version: deployctl provision --ollama-version 0.32.15 …",
        )
