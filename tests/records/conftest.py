"""The invented example records, by name; and a real database of each kind."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployctl.records.db.engine import VARIABLE
from deployctl.records.schema import Record, parse_record

DATA = Path(__file__).parent / "data" / "v1"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


@pytest.fixture
def data_dir() -> Path:
    return DATA


@pytest.fixture
def example() -> Callable[[str], Record]:
    return lambda name: parse_record((DATA / f"{name}.json").read_bytes(), source=name)


@pytest.fixture(params=NAMES)
def any_example(request: pytest.FixtureRequest) -> Record:
    return parse_record((DATA / f"{request.param}.json").read_bytes(), source=request.param)


class Postgres:
    """A PostgreSQL of our own: data and socket in a temporary folder, no TCP, an unprivileged user."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.user = None if os.getuid() else _unprivileged()
        if self.user:
            shutil.chown(folder, self.user)

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.programs / program), *arguments],
            check=True, capture_output=True, user=self.user, cwd=self.folder, stdin=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self.run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self, how: str = "fast") -> None:
        self.run("pg_ctl", "-D", "data", "-w", "-m", how, "stop")

    def database(self, name: str) -> str:
        self.run("createdb", "-h", str(self.folder), "-U", "deployctl", name)
        return f"postgresql://deployctl@/{name}?host={self.folder}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (apt: postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="deployctl-pg-"))  # short: a socket's path has at most 107 bytes
    folder.chmod(0o755)
    server = Postgres(programs, folder)
    try:
        server.run("initdb", "-D", "data", "-U", "deployctl", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
        server.start()
        yield server
        server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database that the environment names, of either kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'index.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        url = server.database(f"t{os.getpid()}_{abs(hash(request.node.nodeid))}")
    monkeypatch.setenv(VARIABLE, url)
    return url


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _unprivileged() -> str:
    """PostgreSQL refuses to run as root."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
