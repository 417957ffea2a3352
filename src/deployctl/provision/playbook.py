"""Run one of our playbooks on one host, and turn what Ansible does into steps, words and errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from deployctl.errors import HostError, HostUnreachable, ProvisionError
from deployctl.events import Emit, StepProgress
from deployctl.hosts import children
from deployctl.hosts.askpass import answering
from deployctl.hosts.openssh import explain
from deployctl.hosts.target import Target
from deployctl.provision import events, inputs
from deployctl.provision.events import Failure, Task
from deployctl.resources import Project

# Longest silence on screen: a task that says nothing is shown to be running at this interval.
HEARTBEAT_S = 4.0
_STOP_S = 6.0
# What of our environment Ansible may see. Everything else (tokens, passwords) stays with us.
_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "TERM", "TZ")


@dataclass(frozen=True)
class Play:
    """How a playbook ended: counts of tasks, the tasks that ran, and what modules returned as facts."""

    ok: int
    changed: int
    failed: int
    skipped: int
    tasks: tuple[Task, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class TaskFailed(ProvisionError):
    """A task failed; ``failure`` holds the module's result."""

    def __init__(self, failure: Failure, log: Path, *, restored: str = "") -> None:
        back = f"; Ollama {restored} with its settings was put back and serves again" if restored else ""
        super().__init__(
            f"{failure.task}: {failure.message}{back}",
            hint=f"put that right, then run the same command again; the whole log: {log}",
        )
        self.failure = failure


def run_playbook(
    name: str,
    target: Target,
    variables: Mapping[str, Any],
    *,
    project: Project,
    log: Path,
    emit: Emit,
    step: str,
    check: bool = False,
) -> Play:
    """Run ``playbooks/<name>`` against the target and wait for its end.

    ``variables`` must hold no secrets: they are written to a private folder for the time of the run. ``check`` changes
    nothing and collects what would change in each task's ``diff``. Ansible's output is appended to ``log`` (0600).
    Raises TaskFailed with the module's message, HostUnreachable when SSH fails or breaks, ProvisionError when Ansible
    does not start. KeyboardInterrupt ends Ansible, its ssh clients and so the remote side, and passes on.
    """
    private = inputs.private_dir()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with answering(target) as asking, _open_private(log) as writer:
            job = inputs.prepare(name, target, variables, project, private, check=check, asking=asking)
            return _Run(target, log, writer, emit, step).follow(job)
    finally:
        shutil.rmtree(private, ignore_errors=True)


class _Run:
    """Reads the worker's lines until the last one."""

    def __init__(self, target: Target, log: Path, writer: TextIO, emit: Emit, step: str) -> None:
        self.target = target
        self.log = log
        self.writer = writer
        self.emit = emit
        self.step = step
        self.tasks: list[Task] = []
        self.skipped = 0
        self.failure: Failure | None = None
        self.facts: dict[str, Any] = {}
        self.text: list[str] = []
        self.now = "starting Ansible"
        self.since = self.said = time.monotonic()

    def follow(self, job: Mapping[str, Any]) -> Play:
        # Not killed with us: at the end of its input it ends Ansible, its ssh clients and the private folder.
        child = children.spawn(
            [sys.executable, "-m", "deployctl.provision.worker"], env=_bare_environment(), killed_with_us=False
        )
        end: Mapping[str, Any] = {}
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(job).encode() + b"\n")
            child.stdin.flush()
            for event in self._lines(child):
                if "end" in event:
                    end = event["end"]
                else:
                    self._take(event)
            problem = b"" if end else (child.stderr.read() if child.stderr else b"")
        finally:
            _end(child)
        return self._conclude(end, problem.decode("utf-8", "replace"))

    def _lines(self, child: subprocess.Popen[bytes]) -> Iterator[Mapping[str, Any]]:
        assert child.stdout is not None
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.05, self.said + HEARTBEAT_S - time.monotonic())):
                    self._say(f"{self.now} ({time.monotonic() - self.since:.0f} s)")
                    continue
                chunk = os.read(child.stdout.fileno(), 65536)
                if not chunk:
                    return
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield json.loads(line)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, stdout = event.get("event"), event.get("stdout") or ""
        if stdout:
            self.writer.write(stdout + "\n")
            self.writer.flush()
            self.text.append(stdout)
        progress = events.progress_in(stdout) if kind == "verbose" else None
        if progress is not None:
            self._say(progress.message, progress.current, progress.total, progress.unit)
        elif kind == "playbook_on_task_start":
            self.now, self.since = events.title(event), time.monotonic()
            self._say(self.now, len(self.tasks) + 1, None, "tasks")
        elif kind == "runner_on_ok":
            self.tasks.append(events.task_of(event))
            self.facts.update(_facts(event.get("result") or {}))
        elif kind == "runner_on_skipped":
            self.skipped += 1
        elif (kind == "runner_on_failed" and not event.get("ignored")) or kind == "runner_on_unreachable":
            self.failure = self.failure or events.failure_of(event)

    def _say(self, message: str, current: float | None = None, total: float | None = None, unit: str = "") -> None:
        self.said = time.monotonic()
        self.emit(StepProgress(self.step, message, current, total, unit))

    def _conclude(self, end: Mapping[str, Any], problem: str) -> Play:
        if self.failure is not None:
            if self.failure.unreachable:
                raise _unreachable(self.target, self.failure, self.log)
            if "missing sudo password" in self.failure.message.lower():
                raise ProvisionError(
                    f"sudo on {self.target} asks for a password",
                    hint="give it: --sudo-password ask (or env:NAME, fd:N); or allow NOPASSWD in /etc/sudoers.d",
                )
            raise TaskFailed(self.failure, self.log, restored=str(self.facts.get("restored", "")))
        if end.get("rc") != 0:
            why = problem.strip().splitlines()[-1:] or [events.complaint("\n".join(self.text))]
            raise ProvisionError(f"Ansible did not run: {why[0]}", hint=f"the whole log: {self.log}")
        return Play(
            ok=len(self.tasks),
            changed=sum(task.changed for task in self.tasks),
            failed=0,
            skipped=self.skipped,
            tasks=tuple(self.tasks),
            facts=self.facts,
        )


def _unreachable(target: Target, failure: Failure, log: Path) -> HostError:
    """The error of its kind, in ssh's words without Ansible's around them."""
    said = str(failure.result.get("msg") or failure.message)
    said = re.sub(r"^.*(?:over ssh|via ssh):\s*", "", said, flags=re.DOTALL)
    error = explain(target, said, f"the SSH connection to {target} failed in `{failure.task}`")
    if type(error) is HostUnreachable:
        error.hint = f"check the host, then run the same command again; the whole log: {log}"
    return error


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """What modules tell of the host: archive, version, model, what was brought back, whether it was restarted."""
    return {key: result[key] for key in ("installed", "version", "model", "restored", "rebooted") if result.get(key)}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Tell the worker to stop by closing its input, and wait until it has cleaned up below itself."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
    children.stop(child)


def _bare_environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Ansible refuses to start without a UTF-8 locale, and speaks English with this one.
    return {**passed, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


def _open_private(path: Path) -> TextIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8")
