"""The wheel in an environment of its own, used from an empty directory: everything that it needs is inside."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


@pytest.fixture(scope="module")
def installed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `deployctl` of a fresh environment that holds the locked packages and the wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    pip = [str(folder / "env" / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(root / "requirements.lock")], check=True)
    subprocess.run([*pip, "--no-deps", *map(str, folder.glob("*.whl"))], check=True)
    return folder / "env" / "bin" / "deployctl"


def clean_environment(home: Path) -> dict[str, str]:
    # No PATH of the environment, no override: as a user calls it by its full path.
    return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"} | {
        name: value for name, value in os.environ.items() if name.startswith("SSL_")
    }


@pytest.mark.timeout(600)
def test_the_demo_runs_from_the_wheel_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    home, empty = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    empty.mkdir()
    demo = ["up", "--plan", "sandbox", "--engine", "embedded", "--model", "gemma3:270m", "--budget", "20s"]
    answer = subprocess.run(
        [str(installed), *demo],
        capture_output=True,
        text=True,
        cwd=empty,
        env=clean_environment(home),
        timeout=500,
        check=False,
    )
    assert answer.returncode in (0, 6), answer.stderr  # 20 seconds may be too short to certify anything
    folder = next((home / ".local" / "share" / "deployctl" / "runs").iterdir())
    assert str(folder / "record.json") in answer.stdout
    assert str(folder / "report.html") in answer.stdout
    assert {path.name for path in folder.iterdir()} >= {"record.json", "report.html"}
    assert list(empty.iterdir()) == []
