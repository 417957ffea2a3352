"""Pulling a model from a registry that its name names, as Ollama does: layer by layer, resumed where it was cut."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from typing import IO, Any, Callable

from .errors import ApiError
from .store import DEFAULT_REGISTRY, MANIFEST_TYPE, Name, Store

Say = Callable[[dict[str, Any]], None]

_BLOCK = 1 << 18
_EVERY_S = 0.06
_STALL_S = 30.0
_TRIES = 4  # without a byte in between; the pauses are 1, 2 and 4 s
_MOST_MANIFEST = 4 << 20


class _Cancelled(Exception):
    """The client has gone."""


async def pull(store: Store, name: Name, *, insecure: bool, say: Say) -> None:
    """Bring the model into the store; ``say`` gets the status documents. Raises ApiError in Ollama's words.

    A client that hangs up ends it. What has come so far stays, and the next pull goes on from there.
    """
    loop = asyncio.get_running_loop()
    gone = threading.Event()

    def tell(document: dict[str, Any]) -> None:
        if not gone.is_set():
            loop.call_soon_threadsafe(say, document)

    try:
        await loop.run_in_executor(None, _Pull(store, name, insecure, tell, gone).run)
    finally:
        gone.set()


class _Pull:
    """One pull, in a thread of its own."""

    def __init__(self, store: Store, name: Name, insecure: bool, say: Say, gone: threading.Event) -> None:
        self._store, self._name, self._say, self._gone = store, name, say, gone
        scheme = "http" if insecure else "https"
        self._base = f"{scheme}://{name.registry}/v2/{name.namespace}/{name.model}"

    def run(self) -> None:
        try:
            self._say({"status": "pulling manifest"})
            raw = self._manifest()
            try:
                manifest = json.loads(raw)
                layers = [*manifest["layers"], manifest["config"]]
                parts = [(str(layer["digest"]), int(layer["size"])) for layer in layers]
            except (ValueError, KeyError, TypeError) as error:
                raise ApiError(500, f"pull model manifest: {error}") from error
            for digest, size in parts:
                self._blob(digest, size)
            self._say({"status": "verifying sha256 digest"})
            self._say({"status": "writing manifest"})
            self._store.install(self._name, raw)
        except _Cancelled:
            return

    def _manifest(self) -> bytes:
        if self._name.registry == DEFAULT_REGISTRY:  # the embedded engine never asks the makers' servers
            raise ApiError(500, "pull model manifest: file does not exist")
        try:
            with self._open(f"manifests/{self._name.tag}", {"Accept": MANIFEST_TYPE}) as answer:
                return bytes(answer.read(_MOST_MANIFEST))
        except urllib.error.HTTPError as error:
            error.close()
            why = "file does not exist" if error.code == 404 else f"HTTP {error.code}"
            raise ApiError(500, f"pull model manifest: {why}") from None
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(500, f"pull model manifest: {self._base}: {_words(error)}") from error

    def _open(self, path: str, headers: dict[str, str]) -> Any:
        request = urllib.request.Request(f"{self._base}/{path}", headers=headers)  # noqa: S310 - http or https
        return urllib.request.urlopen(request, timeout=_STALL_S)  # noqa: S310

    def _blob(self, digest: str, size: int) -> None:
        target = self._store.blob_path(digest)
        if not os.path.exists(target):
            with open(f"{target}-partial", "a+b") as file:
                self._alone(file)
                self._fetch(file, digest, size)
                self._verify(file, digest)
                os.replace(f"{target}-partial", target)
        self._progress(digest, size, size)

    def _alone(self, file: IO[bytes]) -> None:
        """Wait until an earlier pull, whose client has gone, has noticed that."""
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._pause(0.1)

    def _fetch(self, file: IO[bytes], digest: str, size: int) -> None:
        failures = 0
        while (done := file.seek(0, os.SEEK_END)) < size:
            try:
                self._go_on(file, digest, done, size)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                    raise ApiError(500, f"write {file.name}: {error}") from error
                failures = 0 if file.seek(0, os.SEEK_END) > done else failures + 1
                if failures == _TRIES:
                    raise ApiError(500, f"max retries exceeded: {self._base}: {_words(error)}") from error
                self._pause(2.0 ** max(0, failures - 1))

    def _go_on(self, file: IO[bytes], digest: str, done: int, size: int) -> None:
        """Fetch from byte ``done`` on; raises OSError or HTTPException when it breaks off."""
        with self._open(f"blobs/{digest}", {"Range": f"bytes={done}-"} if done else {}) as answer:
            if done and answer.status != 206:
                file.truncate(done := 0)
            told = 0.0
            while done < size:
                block = answer.read(min(_BLOCK, size - done))
                if not block:
                    raise http.client.IncompleteRead(b"", size - done)
                if self._gone.is_set():
                    raise _Cancelled
                file.write(block)
                file.flush()
                done += len(block)
                if time.monotonic() - told > _EVERY_S:
                    told = time.monotonic()
                    self._progress(digest, done, size)

    def _verify(self, file: IO[bytes], digest: str) -> None:
        found = hashlib.sha256()
        file.seek(0)
        for block in iter(lambda: file.read(_BLOCK), b""):
            found.update(block)
        if f"sha256:{found.hexdigest()}" != digest:
            os.unlink(file.name)
            raise ApiError(
                500, f"digest mismatch, file must be downloaded again: want {digest}, got sha256:{found.hexdigest()}"
            )

    def _progress(self, digest: str, done: int, size: int) -> None:
        short = digest.partition(":")[2][:12]
        self._say({"status": f"pulling {short}", "digest": digest, "total": size, "completed": done})

    def _pause(self, seconds: float) -> None:
        if self._gone.wait(seconds):
            raise _Cancelled


def _words(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "unexpected EOF"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
