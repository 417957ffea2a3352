"""The timer that starts the nights: systemd units and a cron line, as text. Pure but for writing the two files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deployctl.errors import UsageError
from deployctl.records.files import write_atomic

UNIT = "deployctl-nightly"
_TIME = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d")


@dataclass(frozen=True)
class Units:
    """The two unit files and the line for those who have cron instead."""

    service: str
    timer: str
    cron: str


def units(command: Sequence[str], *, at: str, timezone: str | None, user: bool) -> Units:
    """Return the units that run ``command`` every day ``at`` HH:MM, in ``timezone`` (None: the machine's own).

    Raises UsageError for a time that is none. A start that was missed, because the machine was off, is made up for.
    """
    if not _TIME.fullmatch(at):
        raise UsageError(f"--at {at}: not a time of day", hint="--at 22:00")
    for word in command:
        if any(char in word for char in "\n\r\0"):
            raise UsageError("a path with a line break cannot stand in a unit file")
    hour, minute = at.split(":")
    zone = f" {timezone}" if timezone else ""
    service = f"""[Unit]
Description=deployctl: measure the hosts of the fleet
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart={" ".join(map(_systemd_word, command))}
# A night that ends with findings is no failure of the unit: 1 is "something fell or failed".
SuccessExitStatus=1
Nice=5
UMask=0077
NoNewPrivileges=yes
TimeoutStartSec=infinity
KillSignal=SIGINT
"""
    timer = f"""[Unit]
Description=deployctl: every night at {at}{zone}

[Timer]
OnCalendar=*-*-* {at}:00{zone}
Persistent=true
AccuracySec=1min

[Install]
WantedBy=timers.target
"""
    del user
    prefix = f"CRON_TZ={timezone}\n" if timezone else ""
    cron = f"{prefix}{int(minute)} {int(hour)} * * * {shlex.join(command).replace('%', chr(92) + '%')}"
    return Units(service, timer, cron)


def write(made: Units, folder: Path) -> tuple[Path, Path]:
    """Write both units into ``folder``; the same again changes nothing. Raises UsageError."""
    paths = (folder / f"{UNIT}.service", folder / f"{UNIT}.timer")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, (made.service, made.timer), strict=True):
            if not path.is_file() or path.read_text("utf-8") != text:
                write_atomic(path, text.encode(), mode=0o644)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}", hint="--user, or as root") from None
    return paths


def _systemd_word(word: str) -> str:
    """Quote a word for ExecStart= (systemd.service(5), "Command lines"): %, $, backslash and quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[A-Za-z0-9@%_+=:,./-]+", escaped) else f'"{escaped}"'
