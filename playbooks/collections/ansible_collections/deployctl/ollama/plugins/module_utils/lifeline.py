"""Ends a long module when nobody listens any more: the SSH connection it was started over is gone.

Ansible starts modules without a terminal, so no hang-up signal comes. Two signs are watched instead: the pipe that
takes our standard output was closed at its other end, or the server process of our SSH session is no longer above us.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

_EVERY_S = 1.0
_LEAVE_S = 10.0


def watch():
    """Start watching; when the connection is gone, the module leaves by SystemExit(130) and so clears up after it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    above = _session()
    threading.Thread(target=_wait, args=(above,), daemon=True).start()


def _wait(above):
    pause = threading.Event()
    while not _closed(1) and _session()[: len(above)] == above:
        pause.wait(_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
    pause.wait(_LEAVE_S)
    os._exit(130)


def _closed(descriptor):
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and hang-ups are always reported
    return any(flags & (select.POLLERR | select.POLLHUP) for _, flags in poll.poll(0))


def _session():
    """Return the processes from us up to our session's sshd; nothing when no sshd is above us."""
    above = []
    pid = os.getppid()
    while pid > 1:
        try:
            with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat:
                name, _, rest = stat.read().rpartition(")")
        except OSError:
            return []
        above.append(pid)
        if name.partition("(")[2] in ("sshd", "sshd-session"):
            return above
        pid = int(rest.split()[1])
    return []
