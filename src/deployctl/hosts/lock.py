"""One run at a time on a host, and a line about each: a lock that expires by itself, and an audit log, both over there.

The lock names the run, who it is and since when. Whoever holds it renews it; a run that was killed lets it lapse, and
the same machine may take over at once from a process of its own that is gone. Times are those of the host's clock.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployctl.errors import HostBusy, HostError, RootMissing
from deployctl.units import format_seconds

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

LOCK = "/run/deployctl/lock"  # a reboot ends whatever ran here, and this file with it
AUDIT = "/var/log/deployctl.log"
TTL_S = 180
RENEW_S = 45.0

# Line 1 of the lock is its owner, line 2 when it ends. flock(1) makes look and write one step.
_SCRIPT = r"""
mkdir -p "${lock%/*}" || exit 1
if command -v flock >/dev/null 2>&1; then exec 9>"$lock.mutex"; flock 9; fi
now=$(date +%s); held=$(sed -n 1p "$lock" 2>/dev/null); until=$(sed -n 2p "$lock" 2>/dev/null)
hold() { printf '%s\n%s\n' "$owner" "$((now + ttl))" >"$lock"; }
note() {
  [ -n "$line" ] || return 0
  [ -e "$audit" ] || (umask 027; : >"$audit")
  printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$line" >>"$audit"
  if command -v logger >/dev/null 2>&1; then logger -t deployctl -- "$line"; fi
}
case $verb in
  take)
    if [ -n "$held" ] && [ "$held" != "$owner" ] && [ "$held" != "$stale" ] && [ "${until:-0}" -gt "$now" ]; then
      echo "held $((until - now)) $held"
    else hold && note && echo taken; fi ;;
  renew) if [ "$held" = "$owner" ]; then hold && echo renewed; else echo lost; fi ;;
  release)
    note
    if [ "$held" = "$owner" ]; then rm -f "$lock" "$lock.mutex"; rmdir "${lock%/*}" 2>/dev/null; fi
    echo released ;;
esac
"""


def who() -> str:
    """Name the person and the machine: ``ana@laptop``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@contextmanager
def only_run(session: Session, run: str, what: str, *, keep_audit: bool = True) -> Iterator[None]:
    """Hold the host's lock while the block runs, and write begin and end of ``what`` into its audit log.

    The end is written for an error and for Ctrl-C, too. Without ``keep_audit`` (the host is cleared) it is not, and
    the log goes. Raises HostBusy naming who holds the lock, RootMissing when it cannot be written.
    """
    lock = _Lock(session, run)
    lock.take(f"begin {what}")
    outcome = "failed"
    began = time.monotonic()
    try:
        with lock.renewed():
            yield
        outcome = "done"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    except BaseException as error:
        outcome = f"failed: {getattr(error, 'message', type(error).__name__)}"
        raise
    finally:
        done = keep_audit or outcome != "done"
        with suppress(HostError):  # the host is gone: the lock lapses
            lock.release(f"end {what}: {outcome}, {time.monotonic() - began:.0f} s" if done else "")
            if not done:
                session.run_as_root(f"rm -f {AUDIT}")


class _Lock:
    def __init__(self, session: Session, run: str) -> None:
        self.session = session
        self.run = run
        self.owner = json.dumps(
            {"run": run, "who": who(), "since": int(time.time()), "machine": _machine(), "process": _process()}
        )

    def take(self, note: str) -> None:
        answer = self._call("take", note)
        if answer.startswith("held") and (gone := _gone(answer)):
            answer = self._call("take", note, stale=gone)
        if answer.startswith("held"):
            raise _busy(self.session, answer)
        if not answer.startswith("taken"):
            raise RootMissing(f"{self.session.target}: {LOCK} cannot be written: {answer}")

    def release(self, note: str) -> None:
        self._call("release", note)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_S):
                with suppress(HostError):
                    self._call("renew", "")

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(5)

    def _call(self, verb: str, note: str, *, stale: str = "") -> str:
        line = f"run={self.run} by={who()} {_one_line(note)}" if note else ""
        values = {"verb": verb, "lock": LOCK, "audit": AUDIT, "ttl": str(TTL_S)}
        values |= {"owner": self.owner, "stale": stale or "-", "line": line}
        settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
        done = self.session.run_as_root(settings + _SCRIPT)
        return done.stdout.strip() or done.stderr.strip()


def _busy(session: Session, answer: str) -> HostBusy:
    left, owner = _held(answer)
    since = max(0.0, time.time() - float(owner.get("since", time.time())))
    return HostBusy(
        f"{session.target} is in use by {owner.get('who', 'somebody')}: run {owner.get('run', '?')},"
        f" for {format_seconds(since)} now",
        hint=f"wait for it; if that run is dead, its lock lapses in {format_seconds(float(left))}",
    )


def _held(answer: str) -> tuple[int, dict[str, Any]]:
    _, left, text = [*answer.split(" ", 2), "", ""][:3]
    try:
        owner = json.loads(text)
    except ValueError:
        owner = {}
    return int(left) if left.isdigit() else 0, owner if isinstance(owner, dict) else {}


def _gone(answer: str) -> str:
    """Return the owner's line when it is a process of this machine that runs no more, else nothing."""
    _, owner = _held(answer)
    if owner.get("machine") != _machine():
        return ""
    pid = str(owner.get("process", "")).partition("/")[0]
    alive = pid.isdigit() and _process(int(pid)) == owner.get("process")
    return "" if alive else answer.split(" ", 2)[2]


def _machine() -> str:
    """This machine since its last boot: process ids say nothing beyond that."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()


def _process(pid: int | None = None) -> str:
    """A process by its id and the time of its start, which no later one has; empty when it is gone."""
    pid = os.getpid() if pid is None else pid
    with suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return f"{pid}/{text.rpartition(')')[2].split()[19]}"
    return ""


def _one_line(text: str) -> str:
    return re.sub(r"[^\x20-\x7e]+", " ", text)[:300]
