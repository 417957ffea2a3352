"""What Ansible's events mean: tasks with times, progress, and of a failure the module's own words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PROGRESS = re.compile(r"\[progress\] (?P<message>.+): (?P<current>\d+)/(?P<total>\d+) (?P<unit>\w+)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EMPTY_WORDS = ("non-zero return code", "module failure", "task failed: module failed")


@dataclass(frozen=True)
class Task:
    """One task that ran: ``seconds`` of wall time, and how the host differs (``diff``, unified enough to read)."""

    name: str
    changed: bool
    seconds: float
    diff: str = ""


@dataclass(frozen=True)
class Failure:
    """A task that failed: the module's message, and its whole result for whoever knows the module."""

    task: str
    message: str
    unreachable: bool
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far a task says it is, in ``unit``."""

    message: str
    current: float
    total: float
    unit: str


def progress_in(stdout: str) -> Progress | None:
    """Read the line of progress that our action plugins print."""
    match = _PROGRESS.search(_ANSI.sub("", stdout))
    if match is None:
        return None
    return Progress(match["message"], float(match["current"]), float(match["total"]), match["unit"])


def title(event: Mapping[str, Any]) -> str:
    """The task's name without its role."""
    name = str(event.get("task") or "")
    role = event.get("role")
    return name.removeprefix(f"{role} : ") if role else name


def task_of(event: Mapping[str, Any]) -> Task:
    """Read the task of a ``runner_on_ok`` event."""
    result = event.get("result") or {}
    return Task(
        name=title(event),
        changed=bool(result.get("changed")),
        seconds=float(event.get("seconds") or 0),
        diff=render_diff(result.get("diff")),
    )


def failure_of(event: Mapping[str, Any]) -> Failure:
    """Read the failure of a ``runner_on_failed`` or ``runner_on_unreachable`` event."""
    result = event.get("result") or {}
    return Failure(
        task=title(event),
        message=words(result),
        unreachable=event.get("event") == "runner_on_unreachable",
        result=result,
    )


def words(result: Mapping[str, Any]) -> str:
    """The module's message; what it wrote where the message says nothing; the failed item's in a loop."""
    for item in result.get("results") or ():
        if isinstance(item, Mapping) and item.get("failed"):
            return words(item)
    message = _one_line(str(result.get("msg") or ""))
    if not message or any(empty in message.lower() for empty in _EMPTY_WORDS):
        written = str(result.get("stderr") or "").strip() or str(result.get("stdout") or "").strip()
        tail = _one_line(" ".join(written.splitlines()[-3:]))
        message = f"{message}: {tail}" if message and tail else message or tail
    return message or "it failed without a message"


def render_diff(diff: Any) -> str:
    """Ansible's before and after as ``-`` and ``+`` lines, each once."""
    parts = diff if isinstance(diff, list) else [diff]
    lines: list[str] = []
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        if part.get("prepared"):
            lines += str(part["prepared"]).splitlines()
            continue
        before, after = (_lines(part.get(side)) for side in ("before", "after"))
        where = part.get("after_header") or part.get("before_header")
        changes = [f"- {line}" for line in before if line not in after]
        changes += [f"+ {line}" for line in after if line not in before]
        lines += ([str(where)] if where and changes else []) + changes
    return "\n".join(lines)


def complaint(log: str) -> str:
    """The last ``ERROR`` of a run that failed before any task: a syntax error, a missing file."""
    lines = [line for line in _ANSI.sub("", log).splitlines() if line.strip()]
    for number in range(len(lines) - 1, -1, -1):
        if "ERROR" in lines[number]:
            return _one_line(" ".join(lines[number : number + 2]))
    return _one_line(lines[-1]) if lines else "ansible-playbook said nothing"


def _lines(side: Any) -> list[str]:
    if isinstance(side, Mapping):
        return [f"{key}: {value}" for key, value in sorted(side.items())]
    return str(side).splitlines() if side else []


def _one_line(text: str) -> str:
    joined = " ".join(_ANSI.sub("", text).split())
    return joined if len(joined) <= 600 else joined[:599] + "…"
