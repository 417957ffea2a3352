"""The process around the sandbox's SSH server: when the caller ends, however it ends, nothing stays behind.

``python -m deployctl.sandbox.guardian ROOT`` holds the root's lock, forks the server, adopts whatever detaches itself
inside, and kills all of it when its standard input closes, its parent changes, SIGTERM comes or the server dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path

from deployctl.sandbox import processes

_POLL_S = 1.0


def _serve_in_child(root: Path) -> int:
    """Fork the SSH server; returns its process id."""
    guardian = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != guardian:  # it was faster to die than we to ask
        os._exit(1)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    try:
        from deployctl.sandbox import sshd

        sshd.main(root)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        os._exit(1)
    os._exit(0)


def guard(root: Path) -> int:
    """Run until it is time to clean up. Returns the exit code."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(1, json.dumps({"error": f"the sandbox {root} is already running"}).encode() + b"\n")
        return 1
    parent = os.getppid()
    processes.adopt_orphans()
    processes.kill_all(root)  # left over from a boot of which every process was killed at once
    wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stop = False

    def on_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_stop)
    signal.signal(signal.SIGINT, on_stop)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    server = _serve_in_child(root)
    while not stop and os.getppid() == parent:
        ready, _, _ = select.select([0, wake_r], [], [], _POLL_S)
        if wake_r in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_r, 4096)
        if 0 in ready and not os.read(0, 4096):
            break
        if server in processes.reap():
            break
    left = processes.kill_all(root)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(guard(Path(sys.argv[1])))
