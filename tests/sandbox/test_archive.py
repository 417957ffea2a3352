"""The archive in Ollama's layout, and the model from its packages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from deployctl.errors import UsageError
from deployctl.sandbox import archive, model

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def built(cache_dir: Path, engine_packages: None) -> Path:
    return archive.build_archive(cache_dir)


def test_the_layout_is_that_of_ollamas_releases(built: Path) -> None:
    with tarfile.open(built) as tar:
        modes = {member.name: member.mode for member in tar if member.isfile()}
    assert modes["bin/ollama"] == 0o755
    assert modes["lib/ollama/llama-server"] == 0o755
    assert all(name.startswith(("bin/", "lib/ollama/")) for name in modes)
    assert any("LICENSE" in name for name in modes)


def test_the_same_content_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    assert archive.build_archive(tmp_path).read_bytes() == built.read_bytes()


def test_it_runs_wherever_it_is_unpacked(built: Path, tmp_path: Path) -> None:
    place = tmp_path / "some where"
    with tarfile.open(built) as tar:
        tar.extractall(place, filter="data")
    # Nothing of this project's environment: not its packages, not its library path.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-I", str(place / "bin" / "ollama"), "--version"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"client version is {archive.engine_version()}" in done.stdout
    server = subprocess.run(
        [place / "lib" / "ollama" / "llama-server", "--version"], env=environment, capture_output=True, check=True
    )
    assert b"version:" in server.stdout + server.stderr
    assert os.access(place / "bin" / "ollama", os.X_OK)


def test_the_model_has_the_announced_bytes_and_hash(cache_dir: Path, engine_packages: None) -> None:
    path = model.gguf_path(cache_dir)
    assert path.stat().st_size == model.MODEL.bytes
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.MODEL.sha256


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    # An interpreter without site packages has none of the extra.
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from deployctl.errors import UsageError\n"
        "from deployctl.sandbox import archive, model\n"
        "for call in (archive.build_archive, model.gguf_path):\n"
        "    try: call(Path(sys.argv[2]))\n"
        "    except UsageError as error: print(error.hint)\n"
    )
    source = str(Path(archive.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, source, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["pip install 'deployctl[sandbox]'"] * 2
    assert UsageError.exit_code == 2
