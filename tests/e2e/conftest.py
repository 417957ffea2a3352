"""Runs the deployctl command as a user would, and looks for what it leaves behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nspawn.host import LabHost

COMMAND = [sys.executable, "-m", "deployctl"]
PATIENCE_S = 480  # the test's own time-out is what ends a command that hangs; this one is for busy machines
MODEL = "gemma3:270m"


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


class Site:
    """One lab host, and the command that provisions it; ``words`` may be changed between runs."""

    def __init__(self, shell: Shell, host: LabHost, *words: str, model: str = MODEL) -> None:
        self.shell, self.host, self.model = shell, host, model
        self.words = ["--plan", "sandbox", "--model", model, "--no-probe", *words]
        self.words += ["--host", f"{host.user}@{host.address}", "--key", str(host.key_file), "--accept-new"]

    def run(self) -> Answer:
        """Provision."""
        return self.shell.run("provision", *self.words)

    def cut(self, step: str, how: Callable[["subprocess.Popen[str]"], None]) -> tuple[int, str]:
        """Run the command, do ``how`` when it comes to ``step``; returns its exit code and what it said."""
        said = self.shell.cwd / "stderr"
        with said.open("w") as sink:
            command = [*self.shell.command, "--data-dir", str(self.shell.data_dir), "-v", "provision", *self.words]
            child = subprocess.Popen(
                command, stdout=sink, stderr=sink, cwd=self.shell.cwd, env=self.shell.env, start_new_session=True
            )
        try:
            deadline = time.monotonic() + 240
            while not self.reached(step, said.read_text()):
                assert child.poll() is None, f"it ended before {step}: {said.read_text()}"
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.02)
            how(child)
            return child.wait(timeout=90), said.read_text()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()

    def reached(self, step: str, said: str) -> bool:
        """Whether a run has printed the step's line and, after ``: ``, a file of this pattern is on the host."""
        line, _, pattern = step.partition(": ")
        return line in said and (not pattern or any(self.host.root_dir.glob(pattern)))

    def locked(self) -> bool:
        """Whether somebody holds the host's lock, dead or alive."""
        return self.host.run("ls /run/deployctl/lock", check=False).returncode == 0

    def answers(self) -> str:
        """Tokens that the served model generates when it is asked on the host itself."""
        body = (
            f'{{"model":"{self.model}","prompt":"One, two,","raw":true,"stream":false,"options":{{"num_predict":4}}}}'
        )
        script = (
            "import json, urllib.request as u; print(json.load(u.urlopen(u.Request("
            f"'http://127.0.0.1:11434/api/generate', {body.encode()!r})))['eval_count'])"
        )
        return str(self.host.run(f"python3 -c {shlex.quote(script)}", timeout=120).stdout.strip())


@pytest.fixture
def site_of(shell: Shell) -> Callable[..., Site]:
    """Build a Site: ``site_of(host, *words)``."""
    return partial(Site, shell)


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
