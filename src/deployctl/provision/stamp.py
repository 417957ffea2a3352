"""Whether a host is exactly as the last run of the playbooks left it, asked in one short script instead of by Ansible.

After a run of the playbooks, what was asked for (every variable, playbook, template, module) and what is there (files
with mode and owner, the unit, the running server's environment, the models) are noted on the host as two digests. While
both are the same again, the playbooks have nothing to do. Any doubt means: run them.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployctl import __version__
from deployctl.resources import Project, shipped_root

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session

STAMP = "/var/lib/deployctl/stamp"

# What the roles see to on a systemd host. A line for everything; what is not there leaves its line out.
_SCRIPT = r"""
LC_ALL=C; export LC_ALL
units=/etc/systemd/system
for path in $units/ollama.service $units/ollama.service.d/* "$prefix/lib/ollama/.deployctl.json"; do
  [ -f "$path" ] && { sha256sum "$path"; stat -c '%n %a %u %g' "$path"; }
done
stat -c '%n %a %u %g %s %Y' "$prefix/bin/ollama"
stat -c '%n %a %u %g' "$prefix/lib/ollama" "$home" "$models" /etc/systemd/system/ollama.service.d
find "$prefix/lib/ollama" "$prefix/lib/.deployctl" -printf '%p %m %U %s %T@ %l\n' | sort | sha256sum
systemctl show ollama --property=ActiveState,SubState,UnitFileState,NeedDaemonReload,FragmentPath,DropInPaths
pid=$(systemctl show ollama --property=MainPID --value)
tr '\0' '\n' <"/proc/$pid/environ" | grep -E '^(OLLAMA|LLAMA|GOMP|DEPLOYCTL|HOME|PATH|CUDA|HIP|ROCR|GGML)' | sort
readlink "/proc/$pid/exe"
getent passwd ollama; id -nG ollama
command -v zstd
python3 -c 'import json, sys, urllib.request as u
for m in sorted(json.load(u.urlopen(sys.argv[1], timeout=5))["models"], key=str):
    print(m["name"], m["digest"], m["size"])' "http://127.0.0.1:$port/api/tags"
"""
_NOTE = r"""
mkdir -p "${stamp%/*}" && umask 022 && printf '%s\n' "$noted" >"$stamp.new" && mv "$stamp.new" "$stamp"
"""


def inputs_digest(variables: Mapping[str, Any], project: Project) -> str:
    """Digest what a run is told: the variables, the files behind them, every playbook and template, our version."""
    digest = hashlib.sha256(__version__.encode())
    digest.update(json.dumps(variables, sort_keys=True, default=str).encode())
    for name in ("ollama_archive", "model_gguf"):
        path = Path(str(variables.get(name) or ""))
        if path.is_file():
            status = path.stat()
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    for base in (shipped_root(), project.root):
        for folder in ("playbooks", "templates"):
            for path in sorted((base / folder).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    digest.update(f"{path.relative_to(base)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def as_left(session: Session, variables: Mapping[str, Any], project: Project) -> bool:
    """Say whether the host is as a run with these variables left it; False wherever that cannot be told."""
    if session.target.service_manager != "systemd":
        return False
    state = _state(session, variables)
    noted = session.run_as_root(f"cat {STAMP} 2>/dev/null").stdout.strip()
    return bool(state) and noted == f"{inputs_digest(variables, project)} {state}"


def note(session: Session, variables: Mapping[str, Any], project: Project) -> None:
    """Note on the host what it was told and how it is now; to be called after the playbooks went through."""
    if session.target.service_manager != "systemd":
        return
    state = _state(session, variables)
    if state:
        noted = shlex.quote(f"{inputs_digest(variables, project)} {state}")
        session.run_as_root(f"stamp={STAMP}\nnoted={noted}\n{_NOTE}")


def forget(session: Session) -> None:
    """Remove the note: the host is about to be what no run of these playbooks made it."""
    if session.target.service_manager == "systemd":
        session.run_as_root(f"rm -f {STAMP}; rmdir {STAMP.rpartition('/')[0]} 2>/dev/null; true")


def _state(session: Session, variables: Mapping[str, Any]) -> str:
    """Digest what is there; empty when the script did not get to its end, which is the server's answer."""
    values = {
        "prefix": "/usr/local",
        "home": "/usr/share/ollama",
        "models": str(variables.get("ollama_models_dir") or "/usr/share/ollama/.ollama/models"),
        "port": str(variables["ollama_port"]),
    }
    settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    done = session.run_as_root(settings + _SCRIPT)
    return hashlib.sha256(done.stdout.encode()).hexdigest() if done.rc == 0 else ""
