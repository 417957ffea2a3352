"""Runs the deployctl command as a user would, and looks for what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "deployctl"]
PATIENCE_S = 240


@dataclass(frozen=True)
class Answer:
    """What a finished command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Stdout as the one JSON document that it must be."""
        return json.loads(self.out)


class Shell:
    """A user's shell: one data directory, commands in the foreground of a process group of their own."""

    def __init__(self, data_dir: Path, cache_dir: Path, cwd: Path) -> None:
        self.data_dir = data_dir
        self.cwd = cwd
        self.command = COMMAND
        self.env = {**os.environ, "DEPLOYCTL_CACHE": str(cache_dir), "COLUMNS": "80"}
        # Whatever the commands start inherits this, so that what they leave behind can be found.
        self.mark = f"DEPLOYCTL_E2E={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        self.env[name] = value

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, "--data-dir", str(self.data_dir), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env=self.env,
            start_new_session=True,
        )

    def run(self, *words: str) -> Answer:
        child = self.start(*words)
        try:
            out, err = child.communicate(timeout=PATIENCE_S)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
        return Answer(child.returncode, out, err)

    def leftovers(self) -> list[str]:
        """Command lines of the processes that still carry this shell's mark, after a moment of grace."""
        for _ in range(50):
            found = list(self._marked())
            if not found:
                return []
            time.sleep(0.1)
        return found

    def _marked(self) -> Iterator[str]:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


@pytest.fixture
def shell(tmp_path: Path, cache_dir: Path) -> Iterator[Shell]:
    made = Shell(tmp_path / "data", cache_dir, tmp_path)
    yield made
    assert made.leftovers() == []


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], bool], str], None]:
    """Wait until a condition holds, or fail saying what was waited for."""

    def wait(condition: Callable[[], bool], what: str, patience_s: float = 120) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {patience_s:.0f} s in vain for {what}"
            time.sleep(0.1)

    return wait
