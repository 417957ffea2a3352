"""A model registry on the test network: Debian's docker-registry, filled in Ollama's layout over its own API."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from deployctl.sizing.registry import MANIFEST_TYPE, PROJECTOR, WEIGHTS


class Store:
    """A registry that runs, and what a push does. ``log`` tells of every request."""

    def __init__(self, home: Path, host: str) -> None:
        self.home, self.log = home, home / "log"
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.netloc = f"{host}:{probe.getsockname()[1]}"
        self.address = f"http://{self.netloc}"
        config = {
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(home / "data")}},
            "http": {"addr": self.netloc, "secret": "for this test only"},
        }
        (home / "config.yml").write_text(json.dumps(config))
        self.http = httpx.Client(base_url=self.address, timeout=60)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        environment = {"PATH": os.environ["PATH"], "OTEL_TRACES_EXPORTER": "none"}
        with self.log.open("ab") as log:
            command = ["docker-registry", "serve", str(self.home / "config.yml")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        for _ in range(200):
            try:
                self.http.get("/v2/").raise_for_status()
                return
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.05)
        raise OSError(f"no registry at {self.address}: {self.log.read_text()}")

    def kill(self) -> None:
        """End it at once, whatever it is sending."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def push(self, name: str, tag: str, weights: bytes, *, file_type: str, projector: bytes = b"", lie: int = 0) -> str:
        """Push a model; returns the digest of its weights."""
        config = json.dumps({"model_format": "gguf", "model_type": "0.1M", "file_type": file_type}).encode()
        layers = [(WEIGHTS, weights)] + ([(PROJECTOR, projector)] if projector else [])
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self.blob(name, "application/vnd.docker.container.image.v1+json", config),
            "layers": [self.blob(name, kind, body) for kind, body in layers],
        }
        manifest["layers"][0]["size"] += lie  # type: ignore[index]
        kind = {"Content-Type": MANIFEST_TYPE}
        self.http.put(f"/v2/{name}/manifests/{tag}", content=json.dumps(manifest), headers=kind).raise_for_status()
        return f"sha256:{hashlib.sha256(weights).hexdigest()}"

    def blob(self, name: str, kind: str, body: bytes) -> dict[str, object]:
        """Push one blob; returns how a manifest lists it."""
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        begun = self.http.post(f"/v2/{name}/blobs/uploads/")
        place = httpx.URL(begun.raise_for_status().headers["Location"]).copy_merge_params({"digest": digest})
        self.http.put(place, content=body).raise_for_status()
        return {"mediaType": kind, "digest": digest, "size": len(body)}

    def manifest_digest(self, name: str, tag: str) -> str:
        """The digest of a manifest, as the registry tells it."""
        answer = self.http.get(f"/v2/{name}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE}).raise_for_status()
        return str(answer.headers["Docker-Content-Digest"])


@contextmanager
def running_registry(home: Path, host: str = "127.0.0.1") -> Iterator[Store]:
    """Run a registry that keeps everything in ``home`` and listens on a free port of ``host``."""
    store = Store(home, host)
    try:
        store.start()
        yield store
    finally:
        store.http.close()
        store.kill()
