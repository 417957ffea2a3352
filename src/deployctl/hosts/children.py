"""Child processes that die with us: the kernel kills them when this process is gone, however it went."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def spawn(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, killed_with_us: bool = True
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in a session of its own with three pipes; a terminal's Ctrl-C reaches us alone.

    ``killed_with_us=False`` is for a child that has to clean up: it must end by itself when its standard input does.
    Call it from a thread that lives as long as the child is wanted: the kernel's signal comes with the death of the
    thread that started it (prctl(2)).
    """
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        start_new_session=True,
        preexec_fn=_die_with(os.getpid()) if killed_with_us else None,
    )


def stop(child: subprocess.Popen[bytes], *, grace_s: float = 2.0) -> None:
    """Terminate the child, kill it after ``grace_s``, reap it and close its pipes."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(grace_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def _die_with(parent: int) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # resolved before the fork

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died in between
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange
