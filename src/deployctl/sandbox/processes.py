"""Finding and ending what was started inside the sandbox. Linux only: it reads /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

# Every command in the sandbox carries this variable with the sandbox's root, and so does what the command starts.
MARK = "DEPLOYCTL_SANDBOX_ROOT"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process ``number`` when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, however it detached itself."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _state_and_parent(pid: int) -> tuple[str, int]:
    # The second field, the command, may hold blanks and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[1])


def descendants(root_pid: int) -> set[int]:
    """Return the running descendants of a process; zombies do not count."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid in _pids():
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = _state_and_parent(pid)
            children.setdefault(parent, []).append(pid)
            if state in "ZX":
                zombies.add(pid)
    found: set[int] = set()
    todo = [root_pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.add(child)
            todo.append(child)
    return found - zombies


def marked(root: Path) -> set[int]:
    """Return the running processes that were started inside the sandbox at ``root``, whoever their parent is now."""
    needle = f"{MARK}={root}".encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError, IndexError, ValueError):
            if (
                needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                and _state_and_parent(pid)[0] not in "ZX"
            ):
                found.add(pid)
    return found - {os.getpid()}


def kill_all(root: Path, *, keep: frozenset[int] = frozenset(), seconds: float = 5.0) -> set[int]:
    """Kill our descendants and everything that carries the sandbox's mark, until nothing is left.

    ``keep`` are process ids to spare. Returns what is still there after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = (descendants(os.getpid()) | marked(root)) - keep
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)


def reap() -> dict[int, int]:
    """Collect our dead children, adopted ones too. Returns their exit codes by process id."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)
