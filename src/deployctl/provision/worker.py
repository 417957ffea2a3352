"""The child process around ansible-runner: ``python -m deployctl.provision.worker``.

A process of its own, because ansible-runner replaces signal handlers, copies the environment it finds into files and
leaves ssh clients running when it is cancelled. Here the environment is bare, the signals are ours to lose, and as a
sub-reaper this process finds and kills whatever Ansible leaves behind.

In: one JSON line (a Job), then the end of standard input means: stop. Out: one JSON line per event, the last is
``{"end": {"status", "rc"}}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PARTS = (
    "changed",
    "msg",
    "diff",
    "kind",
    "model",
    "installed",
    "version",
    "stderr",
    "stdout",
    "results",
    "failed",
    "restored",
    "rebooted",
)


def main() -> int:
    """Run the job that standard input describes."""
    job = json.loads(sys.stdin.readline())
    # Ansible's own chatter must not get between our lines.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stop = threading.Event()
    threading.Thread(target=_wait_for_end, args=(stop,), daemon=True).start()
    events: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_write, args=(events, out), daemon=True)
    writer.start()
    try:
        status, rc = _play(job, events, stop)
        events.put({"end": {"status": status, "rc": rc}})
    finally:
        _reap_all()
        events.put(None)
        writer.join(5)
        shutil.rmtree(job["private_data_dir"], ignore_errors=True)
    return 0


def _play(job: Mapping[str, Any], events: queue.SimpleQueue[Any], stop: threading.Event) -> tuple[str, int | None]:
    from ansible_runner import Runner, RunnerConfig

    # The pieces and not ansible_runner.run(): that writes passwords and variables to files and installs handlers.
    config = RunnerConfig(
        private_data_dir=job["private_data_dir"],
        project_dir=job["project_dir"],
        playbook=job["playbook"],
        inventory=job["inventory"],
        binary=None,
        cmdline=job["cmdline"],
        envvars=job["environment"],
        passwords=job["passwords"],
        quiet=True,
        suppress_output_file=True,
    )
    config.prepare()
    config.command[0] = job["binary"]

    def handle(event: Mapping[str, Any]) -> bool:
        events.put(event)
        return True

    runner = Runner(config=config, event_handler=handle, cancel_callback=stop.is_set)
    status, rc = runner.run()
    return str(status), rc


def _wait_for_end(stop: threading.Event) -> None:
    while sys.stdin.read(4096):
        pass
    stop.set()
    # The runner looks at its flag now and then; ssh and Ansible need not run until it does.
    _kill(_descendants())


def _write(events: queue.SimpleQueue[Any], out: TextIO) -> None:
    while (event := events.get()) is not None:
        try:
            out.write(json.dumps(event if "end" in event else _essence(event), default=str) + "\n")
            out.flush()
        except BrokenPipeError:  # nobody listens; the end of standard input stops us
            return


def _essence(event: Mapping[str, Any]) -> dict[str, Any]:
    data = event.get("event_data") or {}
    result = data.get("res") or {}
    return {
        "event": event.get("event"),
        "stdout": event.get("stdout", ""),
        "task": data.get("task"),
        "role": data.get("role"),
        "action": data.get("task_action"),
        "seconds": data.get("duration"),
        "ignored": bool(data.get("ignore_errors")),
        "result": _parts(result),
    }


def _parts(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        return {"msg": result}
    parts = {key: result[key] for key in _PARTS if key in result}
    if isinstance(parts.get("results"), list):
        parts["results"] = [_parts(item) for item in parts["results"]]
    return parts


def _descendants() -> list[int]:
    """Every process below us, ssh clients that have left their group included: orphans come back to a sub-reaper."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    below = children.get(os.getpid(), [])
    while below:
        found += below
        below = [child for pid in below for child in children.get(pid, [])]
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _reap_all() -> None:
    """Kill what is left (the shared SSH connection, for one) until nothing is."""
    deadline = time.monotonic() + 5
    while (left := _descendants()) and time.monotonic() < deadline:
        _kill(left)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
