"""The embedded engine on this machine, without any host: for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from deployctl.errors import ProvisionError
from deployctl.sandbox.archive import build_archive
from deployctl.sandbox.model import MODEL, gguf_path
from deployctl.sandbox.processes import die_with_parent


def default_cache_dir(repository: Path) -> Path:
    """Return the cache folder for tests: ``$DEPLOYCTL_CACHE``, else ``.cache`` in the repository."""
    return Path(os.environ.get("DEPLOYCTL_CACHE") or repository / ".cache")


def unpacked(cache_dir: Path) -> Path:
    """Return the folder with the unpacked archive; it is unpacked once per content."""
    archive = build_archive(cache_dir)
    target = cache_dir / archive.name.removesuffix(".tgz")
    if not target.is_dir():
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=cache_dir))
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
            partial.chmod(0o755)
            partial.rename(target)
        except OSError:
            if not target.is_dir():
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def place_model(models: Path, gguf: Path) -> None:
    """Put the sandbox's model into a models folder without copying its bytes, as if it had been created there."""
    from deployctl.sandbox.facade.store import Store, parse_name

    store = Store(str(models))
    blob = Path(store.blob_path(f"sha256:{MODEL.sha256}"))
    if not blob.exists():
        try:
            os.link(gguf, blob)
        except OSError:
            blob.symlink_to(gguf)
    name = parse_name(MODEL.reference)
    assert name is not None
    store.create(name, f"sha256:{MODEL.sha256}")


def start_engine(
    cache_dir: Path, models: Path, log: Path, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], str]:
    """Start ``bin/ollama serve`` and wait until it answers. Returns the process and its URL.

    The engine dies with the calling thread. Raises ProvisionError when it does not come up.
    """
    port = free_port()
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("OLLAMA_", "LLAMA_ARG_"))},
        "OLLAMA_HOST": f"127.0.0.1:{port}",
        "OLLAMA_MODELS": str(models),
        "LLAMA_ARG_CACHE_RAM": "0",
        **environment,
    }

    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(unpacked(cache_dir) / "bin" / "ollama"), "serve"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            preexec_fn=die_with_parent,
        )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api/version", timeout=5):  # noqa: S310
            return process, url
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            tail = log.read_text(errors="replace")[-1000:]
            raise ProvisionError(f"the embedded engine did not come up: {tail}")
        time.sleep(0.05)


def stop_engine(process: subprocess.Popen[bytes]) -> None:
    """Stop a server that ``start_engine`` started, and its engine with it."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running_engine(
    cache_dir: Path,
    slots: int = 4,
    context: int = 2048,
    *,
    load: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run the embedded engine with the sandbox's model on a free port of the loopback; yields its URL.

    ``slots`` requests run at once with ``context`` tokens each. ``load`` puts the model into memory first. The model
    stays loaded for ever (keep-alive -1). Everything is gone afterwards.
    """
    gguf = gguf_path(cache_dir)
    with tempfile.TemporaryDirectory(prefix="engine-", dir=cache_dir) as folder:
        models = Path(folder) / "models"
        place_model(models, gguf)
        settings = {
            "OLLAMA_NUM_PARALLEL": str(slots),
            "OLLAMA_CONTEXT_LENGTH": str(context),
            "OLLAMA_KEEP_ALIVE": "-1",
            **(environment or {}),
        }
        process, url = start_engine(cache_dir, models, Path(folder) / "engine.log", settings)
        try:
            if load:
                body = json.dumps({"model": MODEL.reference}).encode()
                with urllib.request.urlopen(f"{url}/api/generate", body, timeout=120) as answer:  # noqa: S310 - our own URL
                    answer.read()
            yield url
        finally:
            stop_engine(process)
