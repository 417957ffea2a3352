"""Whether a host's disks hold what is about to be sent and fetched, told before anything is.

The roles look again where each thing is about to be written; they know more by then, and it is later.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from deployctl.errors import ModelUnavailable, ProvisionError
from deployctl.provision.settings import Source
from deployctl.sizing.registry import DEFAULT, Name
from deployctl.units import format_bytes

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Session
    from deployctl.provision.deploy import ModelFiles

UNPACKED_FACTOR = 3  # as the module install reckons

# One line for each folder: its disk, and what is free there. Then what of the work is done already.
_SCRIPT = r"""
LC_ALL=C; export LC_ALL
look() {
  at=$2; while [ ! -d "$at" ]; do at=${at%/*}; at=${at:-/}; done
  df -Pk "$at" | awk -v name="$1" 'NR == 2 { printf "disk %s %.0f %s\n", name, $4 * 1024, $6 }'
}
look uploads "$uploads"; look prefix "$prefix"; look models "$models"
find "$uploads" -type f -exec stat -c %s {} + 2>/dev/null | awk '{ n += $1 } END { printf "sent %.0f\n", n }'
grep -qsF "\"sha256\": \"$sha256\"" "$prefix/lib/ollama/.deployctl.json" && echo installed
[ -f "$models/manifests/$manifest" ] && echo listed
find "$models/blobs" -type f -size "${weights}c" 2>/dev/null | grep -qv partial && echo stored
find "$models/blobs" -type f -name '*partial*' -exec du -k {} + 2>/dev/null |
  awk '{ n += $1 } END { printf "partial %.0f\n", n * 1024 }'
"""


@dataclass(frozen=True)
class Room:
    """What was found, in bytes: each folder's disk, what is free on each disk, and what need not be sent again."""

    disks: Mapping[str, str]
    free: Mapping[str, int]
    sent: int = 0
    partial: int = 0
    installed: bool = False
    listed: bool = False
    stored: bool = False


def ensure_room(session: Session, source: Source, model: ModelFiles, models_dir: str | None = None) -> None:
    """Raise ProvisionError when the archive does not fit on the host's disks, ModelUnavailable for the model.

    ``models_dir`` is where models are kept if not below the server's home.
    """
    archive = source.archive.stat().st_size if source.archive is not None else 0
    room = _look(session, source, model, models_dir)
    if room is None:
        return  # a host that cannot tell is not refused
    weights = model.bytes
    if room.installed:
        archive = 0
    if room.stored if model.gguf is not None else room.listed:
        weights = 0
    unpacked = archive * UNPACKED_FACTOR
    _fits(session, room, {"uploads": archive - room.sent, "prefix": unpacked}, ProvisionError, "the archive")
    kept = {"prefix": unpacked, "models": weights - room.partial}
    coming = {"uploads": weights - room.sent} if model.gguf is not None else {}
    _fits(session, room, kept | coming, ModelUnavailable, model.reference)


def _fits(
    session: Session,
    room: Room,
    needs: Mapping[str, int],
    kind: type[ProvisionError | ModelUnavailable],
    what: str,
) -> None:
    for mount, free in room.free.items():
        need = sum(max(0, size) for folder, size in needs.items() if room.disks[folder] == mount)
        if need > free:
            raise kind(
                f"{session.target.name}: {what} does not fit on {mount}: about {format_bytes(need)} are needed while it"
                f" is put there, {format_bytes(free)} are free; nothing was sent",
                hint=f"make room (ssh {session.target} df -h {mount}), then run the same command again",
            )


def _look(session: Session, source: Source, model: ModelFiles, models_dir: str | None) -> Room | None:
    rootless = session.target.service_manager != "systemd"
    home = session.run("echo ~").stdout.strip()
    name = Name.parse(model.reference)
    values = {
        "uploads": f"{home}/.cache/deployctl/uploads",
        "prefix": f"{home}/.local" if rootless else "/usr/local",
        "models": models_dir or (f"{home}/.ollama/models" if rootless else "/usr/share/ollama/.ollama/models"),
        "sha256": source.sha256 or "?",
        "manifest": f"{name.registry or urlsplit(DEFAULT).netloc}/{name.namespace}/{name.model}/{name.tag}",
        "weights": str(model.bytes),
    }
    script = "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items()) + _SCRIPT
    lines = (session.run(script) if rootless else session.run_as_root(script)).stdout.splitlines()
    found = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}
    disks = [line.split(" ", 3)[1:] for line in lines if line.startswith("disk ")]
    if len(disks) != 3:
        return None
    return Room(
        disks={folder: mount for folder, _, mount in disks},
        free={mount: int(free) for _, free, mount in disks},
        sent=int(found.get("sent") or 0),
        partial=int(found.get("partial") or 0),
        installed="installed" in found,
        listed="listed" in found,
        stored="stored" in found,
    )
