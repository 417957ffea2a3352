"""What one run of Ansible is given: a private folder with inventory and settings, a bare environment. No secrets."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployctl.errors import ProvisionError
from deployctl.hosts.openssh import auth_args, ssh_args
from deployctl.hosts.target import Target
from deployctl.resources import Project, shipped_root


def prepare(
    name: str,
    target: Target,
    variables: Mapping[str, Any],
    project: Project,
    private: Path,
    *,
    check: bool,
    asking: Mapping[str, str],
) -> dict[str, Any]:
    """Fill the ``private`` folder and return the job for the worker; raises ProvisionError.

    ``asking`` is the environment by which ssh clients ask us for secrets.
    """
    password = target.secrets.sudo if target.become else None
    root = _playbook_root(project, private)
    playbook = root / "playbooks" / name
    if not playbook.is_file():
        raise ProvisionError(f"there is no playbooks/{name} in {project.root} nor among the shipped files")
    inventory = private / "inventory" / "hosts.json"
    inventory.parent.mkdir(mode=0o700)
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", target.name).strip("-") or "host"
    hosts = {host: {**_connection(target), **variables}}
    # In a group of the playbook's name as well: loadgen.yml acts on the group loadgen.
    _write_private(inventory, {"all": {"hosts": hosts, "children": {playbook.stem: {"hosts": {host: {}}}}}})
    (private / "ansible.cfg").touch(mode=0o600)
    # Read by ansible-runner from this file only; as an argument it is dropped. How often it looks for a cancel.
    _write_private(private / "env" / "settings", {"pexpect_timeout": 0.5, "suppress_output_file": True})
    return {
        "private_data_dir": str(private),
        "project_dir": str(private),
        "playbook": str(playbook),
        "inventory": str(inventory),
        "binary": _ansible_playbook(),
        "cmdline": " ".join((["--check", "--diff"] if check else []) + (["--ask-become-pass"] if password else [])),
        "environment": {**_ansible_environment(target, private), **asking},
        "passwords": {r"BECOME password.*:\s*?$": password} if password else {},
    }


def _connection(target: Target) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ansible_connection": "ssh",
        "ansible_host": target.address,
        "ansible_port": target.port,
        "ansible_user": target.user,
        "ansible_ssh_common_args": shlex.join(ssh_args(target)),
        "ansible_become": target.become,
    }
    if target.python:
        found["ansible_python_interpreter"] = target.python
    if target.service_manager == "process":
        # A home of its own that no account file knows: "~" would be looked up there, $HOME is what the session says.
        found["ansible_remote_tmp"] = "$HOME/.ansible/tmp"
    return found


def _ansible_environment(target: Target, private: Path) -> dict[str, str]:
    return {
        "ANSIBLE_CONFIG": str(private / "ansible.cfg"),  # nobody else's
        "ANSIBLE_HOME": str(private / "ansible"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_PIPELINING": "True",
        # One connection for the whole play; the socket's path must stay under 104 characters.
        "ANSIBLE_SSH_ARGS": shlex.join(
            [
                *auth_args(target),
                *("-o", "ControlMaster=auto", "-o", "ControlPersist=30s", "-o", f"ControlPath={private}/s/%C"),
            ]
        ),
        "ANSIBLE_TIMEOUT": "15",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_INVENTORY_ENABLED": "yaml",
        "ANSIBLE_FORKS": "1",
    }


def private_dir() -> Path:
    """A fresh folder (0700) with a short path: sockets are limited to 104 characters."""
    short = Path("/tmp")  # noqa: S108 - mkdtemp makes it ours alone
    parent = short if os.access(short, os.W_OK) else Path(tempfile.gettempdir())
    private = Path(tempfile.mkdtemp(prefix="dctl-", dir=parent))
    (private / "s").mkdir(mode=0o700)
    (private / "env").mkdir(mode=0o700)
    return private


def _playbook_root(project: Project, private: Path) -> Path:
    """The folder to run from: the shipped one as it is, or a merged copy where the project overrides a file."""
    shipped = shipped_root()
    overridden = project.root.resolve() != shipped.resolve() and any(
        (project.root / folder).is_dir() for folder in ("playbooks", "templates")
    )
    if not overridden:
        return shipped
    for folder in ("playbooks", "templates"):
        project.materialise(folder, private / "resources")
    return private / "resources"


def _ansible_playbook() -> str:
    """The ansible-playbook beside this interpreter: the environment may not be activated."""
    beside = Path(sys.executable).parent / "ansible-playbook"
    found = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if found is None:
        raise ProvisionError("ansible-playbook is not installed", hint=f"{sys.executable} -m pip install deployctl")
    return found


def _write_private(path: Path, content: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_literal(content))


def _literal(value: Any) -> str:
    """JSON as YAML in which no string is a template: a value that looks like Jinja is marked as text (``!unsafe``)."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    mark = "!unsafe " if isinstance(value, str) and "{" in value else ""
    return mark + json.dumps(value)
