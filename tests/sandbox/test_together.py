"""The engine on the sandbox host, installed and used as the program does it: over SSH and through a tunnel."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from deployctl.hosts.target import Target
from deployctl.sandbox import processes
from deployctl.sandbox.archive import build_archive
from deployctl.sandbox.engine import free_port
from deployctl.sandbox.host import SandboxHost
from deployctl.sandbox.model import MODEL, gguf_path

pytestmark = pytest.mark.engine
pytest.importorskip("asyncssh", reason="needs the sandbox extra")


def ssh(target: Target, *words: str) -> list[str]:
    known = ["-o", f"UserKnownHostsFile={target.known_hosts}", "-o", "StrictHostKeyChecking=yes"]
    key = ["-o", "IdentitiesOnly=yes", "-i", str(target.key_file), "-p", str(target.port)]
    return ["ssh", "-F", "none", *known, *key, f"{target.user}@{target.address}", *words]


@contextlib.contextmanager
def served_through_a_tunnel(host: SandboxHost, archive: Path) -> Iterator[str]:
    port, local = free_port(), free_port()
    with archive.open("rb") as data:
        install = "mkdir -p .local && tar -xzf - -C .local"
        subprocess.run(ssh(host.target, install), stdin=data, check=True, timeout=60)
    start = (
        f"OLLAMA_HOST=127.0.0.1:{port} OLLAMA_NUM_PARALLEL=2 OLLAMA_CONTEXT_LENGTH=512 OLLAMA_KEEP_ALIVE=-1 "
        "setsid nohup .local/bin/ollama serve >ollama.log 2>&1 </dev/null &"
    )
    subprocess.run(ssh(host.target, start), check=True, timeout=60)
    tunnel = subprocess.Popen(ssh(host.target, "-N", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}"))
    url = f"http://127.0.0.1:{local}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{url}/api/version", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, (host.home / "ollama.log").read_text()
                time.sleep(0.1)
        yield url
    finally:
        tunnel.terminate()
        tunnel.wait()


def test_install_upload_create_and_chat_then_nothing_is_left(
    cache_dir: Path, engine_packages: None, tmp_path: Path
) -> None:
    archive = build_archive(cache_dir)
    with SandboxHost(tmp_path / "box") as host:
        with served_through_a_tunnel(host, archive) as url:
            client = ollama.Client(url)
            digest = client.create_blob(gguf_path(cache_dir))
            assert client.create(MODEL.reference, files={"model.gguf": digest}).status == "success"
            answer = client.chat(
                MODEL.reference, [{"role": "user", "content": "Hello"}], options={"num_predict": 5, "seed": 1}
            )
            assert answer.eval_count == 5
            client._client.close()
        names = {Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] for pid in processes.marked(host.root)}
        assert any(name.endswith(b"/lib/ollama/llama-server") for name in names)
    assert processes.marked(host.root) == set()
    # A second boot finds the installation and the model, and no engine.
    with SandboxHost(tmp_path / "box") as host:
        assert processes.marked(host.root) == set()
        with served_through_a_tunnel(host, archive) as url:
            client = ollama.Client(url)
            assert [entry.model for entry in client.list().models] == [MODEL.reference]
            client._client.close()
