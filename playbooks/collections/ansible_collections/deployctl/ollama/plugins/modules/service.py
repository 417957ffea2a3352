#!/usr/bin/python
"""Keeps Ollama running with exactly the wanted environment, under systemd or as a detached process."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service
short_description: Keep Ollama running with the wanted environment
description:
  - Compares the environment of the running server with I(environment) and restarts it only when they differ, so an
    interrupted earlier run is made good, and settings that something else overrides are found.
  - Waits until the server answers. What is installed then is kept as good, what was good before as the previous one.
  - C(restored) brings the good installation back, or with I(which) the previous one, and starts it.
options:
  state:
    description: Whether it should run, be gone, or be what it was.
    type: str
    choices: [started, absent, restored]
    default: started
  which: {description: What C(restored) brings back., type: str, choices: [good, previous], default: good}
  settings: {description: Files with the settings; kept and brought back., type: list, elements: path, default: []}
  manager: {description: How services are kept., type: str, choices: [systemd, process], default: systemd}
  environment: {description: Variables that the running server must have., type: dict, default: {}}
  url: {description: Where it answers., type: str, default: "http://127.0.0.1:11434"}
  restart: {description: Restart in any case., type: bool, default: false}
  timeout: {description: Seconds until it must answer., type: int, default: 60}
  unit: {description: Name of the systemd unit., type: str, default: ollama}
  binary: {description: The program., type: path, default: ~/.local/bin/ollama}
  state_dir: {description: Where process id and log are (process)., type: path, default: ~/.local/state/deployctl}
attributes:
  check_mode: {support: full}
"""

EXAMPLES = r"""
- deployctl.ollama.service:
    environment: {OLLAMA_HOST: "127.0.0.1:11434", OLLAMA_NUM_PARALLEL: "4"}
"""

RETURN = r"""
version: {description: What the server tells., type: str, returned: when started}
restored: {description: The version that was brought back., type: str, returned: when restored}
"""

import os
import shlex
import shutil
import signal
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.deployctl.ollama.plugins.module_utils import health
from ansible_collections.deployctl.ollama.plugins.module_utils.history import History

UNITS = "/etc/systemd/system"
STOP_S = 15


class Problem(Exception):
    """What to tell the user."""


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "absent", "restored"], "default": "started"},
            "which": {"type": "str", "choices": ["good", "previous"], "default": "good"},
            "settings": {"type": "list", "elements": "path", "default": []},
            "manager": {"type": "str", "choices": ["systemd", "process"], "default": "systemd"},
            "environment": {"type": "dict", "default": {}},
            "url": {"type": "str", "default": "http://127.0.0.1:11434"},
            "restart": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 60},
            "unit": {"type": "str", "default": "ollama"},
            "binary": {"type": "path", "default": "~/.local/bin/ollama"},
            "state_dir": {"type": "path", "default": "~/.local/state/deployctl"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    keeper = Systemd(wanted) if wanted["manager"] == "systemd" else Process(wanted)
    try:
        if wanted["state"] == "absent":
            module.exit_json(changed=keeper.remove(module.check_mode))
        history = History(os.path.dirname(os.path.dirname(wanted["binary"])), wanted["settings"])
        if wanted["state"] == "restored":
            module.exit_json(**restore(keeper, history, wanted, module.check_mode))
        result = ensure(keeper, wanted, module.check_mode)
        if not module.check_mode:
            history.keep()
        module.exit_json(**result)
    except (Problem, OSError) as error:
        module.fail_json(msg=str(error))


def ensure(keeper, wanted, pretend):
    goal = keeper.goal({key: str(value) for key, value in wanted["environment"].items()})
    before = keeper.environment()
    wrong = [key for key in sorted(goal) if before is None or before.get(key) != goal[key]]
    prepared = keeper.prepare(pretend)
    restart = wanted["restart"] or before is None or bool(wrong)
    if pretend or not restart:
        version = health.version(wanted["url"])
        if not pretend and version is None:
            version = wait(keeper, wanted)
        return {"changed": prepared or restart, "version": version, "differing": wrong}
    taken = before is None and health.version(wanted["url"])
    if taken:
        raise Problem(
            "another Ollama (%s) answers at %s already, and it is not ours: stop it, or choose another port"
            % (taken, wanted["url"])
        )
    keeper.restart(goal)
    version = wait(keeper, wanted)
    now = keeper.environment() or {}
    for key in sorted(goal):
        if now.get(key) != goal[key]:
            raise Problem(
                "the running server has %s=%s, wanted was %s: %s" % (key, now.get(key), goal[key], keeper.overriding())
            )
    return {"changed": True, "version": version, "differing": wrong}


def restore(keeper, history, wanted, pretend):
    """Bring back what was kept; where nothing is kept, C(good) has nothing to do and C(previous) fails."""
    meta, now = history.kept(wanted["which"]), history.current()
    if meta is None:
        if wanted["which"] == "good":
            return {"changed": False}
        raise Problem("there is no previous installation to go back to")
    name = meta["version"] or "the one that was there before"
    if pretend:
        return {"changed": now is None or now["id"] != meta["id"], "restored": name}
    changed = history.back() if wanted["which"] == "previous" else history.restore("good")
    if changed:
        keeper.prepare(False)
        keeper.restart(keeper.kept())
        return {"changed": True, "restored": name, "version": wait(keeper, wanted)}
    return {"changed": False}


def wait(keeper, wanted):
    deadline = time.monotonic() + wanted["timeout"]
    pause = 0.02
    while True:
        version = health.version(wanted["url"])
        if version:
            return version
        if not keeper.alive():
            raise Problem("Ollama ended right after its start: %s" % keeper.last_words())
        if time.monotonic() > deadline:
            raise Problem(
                "Ollama does not answer at %s after %d s: %s" % (wanted["url"], wanted["timeout"], keeper.last_words())
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def environment_of(pid):
    """Return the environment that a process was started with, or None when there is no such process."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair) or None


class Systemd:
    """The unit and drop-in that the role has written."""

    def __init__(self, wanted):
        self.unit = wanted["unit"] + ".service"
        self.died = False

    def _systemctl(self, *words):
        done = subprocess.run(["systemctl", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout.decode("utf-8", "replace").strip()

    def _must(self, *words):
        code, text = self._systemctl(*words)
        if code:
            raise Problem("systemctl %s failed: %s" % (" ".join(words), text or self.last_words()))

    def _show(self):
        names = "LoadState,ActiveState,MainPID,NeedDaemonReload,UnitFileState,DropInPaths,NRestarts"
        code, text = self._systemctl("show", self.unit, "--property=" + names)
        if code:
            raise Problem("systemctl show failed: %s" % text)
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def goal(self, environment):
        return environment

    def environment(self):
        pid = int(self._show().get("MainPID") or 0)
        return environment_of(pid) if pid else None

    def prepare(self, pretend):
        shown = self._show()
        if pretend:
            return shown.get("UnitFileState") != "enabled"
        if shown.get("NeedDaemonReload") == "yes" or shown.get("LoadState") != "loaded":
            self._must("daemon-reload")
        if shown.get("UnitFileState") != "enabled":
            self._must("enable", "--quiet", self.unit)
            return True
        return False

    def kept(self):
        return {}  # it is in the drop-in

    def restart(self, goal):
        del goal
        self._systemctl("reset-failed", self.unit)
        self._must("restart", self.unit)

    def alive(self):
        shown = self._show()
        return (
            shown.get("ActiveState") in ("active", "activating", "reloading") and int(shown.get("NRestarts") or 0) < 3
        )

    def overriding(self):
        return "one of these files overrides it: %s" % self._show().get("DropInPaths", "").strip()

    def last_words(self):
        command = ["journalctl", "--unit", self.unit, "--lines", "8", "--output", "cat", "--no-pager"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return (
            " | ".join(done.stdout.decode("utf-8", "replace").split("\n"))[-600:].strip(" |") or "its journal is empty"
        )

    def remove(self, pretend):
        files = [os.path.join(UNITS, self.unit), os.path.join(UNITS, self.unit + ".d")]
        there = [path for path in files if os.path.lexists(path)]
        running = self._show().get("ActiveState") in ("active", "activating", "reloading")
        if pretend or not (there or running):
            return bool(there or running)
        self._systemctl("disable", "--now", "--quiet", self.unit)
        if running:
            self._systemctl("stop", self.unit)
        for path in there:
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        self._must("daemon-reload")
        self._systemctl("reset-failed", self.unit)
        return True


class Process:
    """A server in a session of its own, which outlives the SSH connection; known by its process id file."""

    def __init__(self, wanted):
        self.binary = wanted["binary"]
        self.folder = wanted["state_dir"]
        self.pid_file = os.path.join(self.folder, "ollama.pid")
        self.log_file = os.path.join(self.folder, "ollama.log")

    def goal(self, environment):
        """Expand ``~`` in paths: no shell and no systemd stands between us and the server."""
        models = environment.get("OLLAMA_MODELS")
        return dict(environment, OLLAMA_MODELS=os.path.expanduser(models)) if models else environment

    def _pid(self):
        """Return the process id on file if that process runs our binary; another may have its number by now."""
        try:
            with open(self.pid_file, encoding="ascii") as file:
                pid = int(file.read())
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = file.read().split(b"\0")
            return pid if os.fsencode(self.binary) in words[:3] and _state(pid) != "Z" else None
        except (OSError, ValueError):
            return None

    def environment(self):
        pid = self._pid()
        return environment_of(pid) if pid else None

    def prepare(self, pretend):
        if not pretend:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        return False

    def kept(self):
        with open(os.path.join(self.folder, "ollama.env"), encoding="utf-8") as file:
            return dict(shlex.split(line)[0].split("=", 1) for line in file if "=" in line)

    def restart(self, goal):
        self._stop()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OLLAMA_", "LLAMA_ARG_"))}
        environment.update(goal)
        with open(os.path.join(self.folder, "ollama.env"), "w", encoding="utf-8") as file:
            file.writelines("%s=%s\n" % (key, shlex.quote(value)) for key, value in sorted(goal.items()))
        with open(self.log_file, "ab") as log:
            server = subprocess.Popen(
                [self.binary, "serve"],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        new = self.pid_file + ".new"
        with open(new, "w", encoding="ascii") as file:
            file.write("%d\n" % server.pid)
        os.replace(new, self.pid_file)
        self.server = server

    def alive(self):
        return self.server.poll() is None if hasattr(self, "server") else self._pid() is not None

    def overriding(self):
        return "it was changed behind our back"

    def last_words(self):
        try:
            with open(self.log_file, "rb") as file:
                file.seek(max(0, os.path.getsize(self.log_file) - 2000))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return " | ".join(lines[-6:])[-600:] or "its log is empty"

    def _stop(self):
        pid = self._pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while _state(pid) not in (None, "Z"):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                deadline += STOP_S
            time.sleep(0.02)
        return True

    def remove(self, pretend):
        if pretend:
            return self._pid() is not None or os.path.isdir(self.folder)
        changed = self._stop()
        if os.path.isdir(self.folder):
            shutil.rmtree(self.folder)
            changed = True
        return changed


def _state(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


if __name__ == "__main__":
    main()
