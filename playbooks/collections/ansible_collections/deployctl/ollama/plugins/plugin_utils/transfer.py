"""What the action plugins share on the controller: sending a file so that it can be resumed, and live progress."""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import threading
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

CHUNK = 16 << 20
EVERY_S = 2.0
UPLOADS = ".cache/deployctl/uploads"  # below the login user's home

display = Display()


def tell(message: str, current: int, total: int) -> None:
    """Print one line of progress, in bytes; deployctl reads such lines back from Ansible's output."""
    display.display(f"[progress] {message}: {current}/{total} bytes")


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a local file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AnsibleActionFail(f"cannot read {path}: {error.strerror}") from error


def push(action: ActionBase, source: Path, digest: str) -> str:
    """Send ``source`` to the host in chunks and return its path there; what an earlier run has sent is kept.

    It is filed under its digest in the login user's home, so two files cannot be mixed up. Whoever consumes it
    verifies the digest.
    """
    total = source.stat().st_size
    told = time.monotonic()
    # The free space must hold what is still to come; df counts in blocks of 1024 bytes.
    begin = (
        f"umask 077 && mkdir -p ~/{UPLOADS} && cd ~/{UPLOADS} && touch {digest} && "
        f"echo at $(wc -c < {digest}) free $(df -Pk . | tail -n 1 | awk '{{print $4}}') in $(pwd)"
    )
    answer = re.search(r"at (\d+) free (\d+) in (\S.*)", _shell(action, begin))
    if answer is None:
        raise AnsibleActionFail(f"the host does not say where {source.name} can be uploaded")
    offset, free, folder = int(answer[1]), int(answer[2]) * 1024, answer[3].strip()
    if offset > total:
        offset = _restart(action, digest)
    if total - offset > free:
        raise AnsibleActionFail(
            f"too little space for {source.name} in {folder}: {total - offset} bytes are to come, {free} are free"
        )
    with source.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(CHUNK):
            size = _shell(action, f"cat >> ~/{UPLOADS}/{digest} && wc -c < ~/{UPLOADS}/{digest}", chunk).strip()
            offset += len(chunk)
            if size != str(offset):
                _restart(action, digest)
                raise AnsibleActionFail(f"{source.name} arrived with {size} bytes where {offset} were sent")
            if time.monotonic() - told > EVERY_S:
                told = time.monotonic()
                tell(f"uploading {source.name}", offset, total)
    return f"{folder}/{digest}"


def watched(action: ActionBase, module: str, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
    """Run a module that notes its progress in a file, and show that progress meanwhile."""
    path = f"/tmp/.deployctl-{secrets.token_hex(8)}"
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(action, path, ended), daemon=True)
    watcher.start()
    try:
        return action._execute_module(  # type: ignore[no-any-return]
            module_name=module, module_args={**arguments, "progress": path}, task_vars=task_vars
        )
    finally:
        ended.set()
        watcher.join(EVERY_S * 5)


def _watch(action: ActionBase, path: str, ended: threading.Event) -> None:
    last = ""
    while not ended.wait(EVERY_S):
        try:
            _, out, _ = action._connection.exec_command(
                f"/bin/sh -c {shlex.quote(f'cat {path} 2>/dev/null')}", in_data=None, sudoable=False
            )
        except AnsibleConnectionFailure:
            return  # the module's own call says so
        line = re.search(r"(.+): (\d+)/(\d+) bytes", out.decode("utf-8", "replace"))
        if line and line[0] != last and not ended.is_set():
            last = line[0]
            tell(line[1], int(line[2]), int(line[3]))


def _restart(action: ActionBase, digest: str) -> int:
    _shell(action, f": > ~/{UPLOADS}/{digest}")
    return 0


def _shell(action: ActionBase, command: str, data: bytes | None = None) -> str:
    done = action._low_level_execute_command(command, sudoable=False, in_data=data)
    if done["rc"] != 0:
        why = (done["stderr"] or done["stdout"]).strip()
        raise AnsibleActionFail(f"upload failed: {why or 'exit status ' + str(done['rc'])}")
    return str(done["stdout"])
