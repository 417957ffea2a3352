"""Answers an ssh client's questions for secrets, without argv, environment or files ever holding one.

ssh runs the program in SSH_ASKPASS and reads its output (ssh(1)). Ours is a line of shell that hands the question to a
socket in a private folder; the answer comes from this process's memory and ends with the block.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from deployctl.hosts.target import Target

_CLIENT = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    link.sendall(sys.argv[2].encode() + b"\\0")
    answer = b"".join(iter(lambda: link.recv(4096), b""))
sys.stdout.buffer.write(answer)
sys.exit(0 if answer else 1)
"""


def answer_for(target: Target, question: str) -> str | None:
    """Return the secret that ``question`` asks for, or None when it is none of ours. Pure.

    The wording is OpenSSH's (sshconnect2.c): a password is asked for by user and host key alias, a passphrase by file.
    """
    for hop in target.chain:
        secrets = hop.secrets
        host = hop.known_hosts_name if hop.via is not None else hop.address
        if secrets.passphrase is not None and question.startswith("Enter passphrase for key '"):
            path = question.removeprefix("Enter passphrase for key '").rpartition("'")[0]
            if hop.key_file is None or path == str(hop.key_file):
                return secrets.passphrase
        asked = (f"{hop.user}@{host}'s password", f"({hop.user}@{host}) ")
        if secrets.password is not None and question.startswith(asked):
            return secrets.password
    return None


@contextmanager
def answering(target: Target) -> Iterator[Mapping[str, str]]:
    """Yield the environment that makes ssh clients ask us while the block runs; empty when nothing will be asked."""
    if not any(hop.secrets.for_ssh for hop in target.chain):
        yield {}
        return
    folder = Path(tempfile.mkdtemp(prefix="dctl-ask-"))
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "s"))
            server.listen(16)
            (folder / "client.py").write_text(_CLIENT)
            program = folder / "ask"
            words = (sys.executable, "-I", "-S", str(folder / "client.py"), str(folder / "s"))
            program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$1"\n')
            program.chmod(0o700)
            thread = threading.Thread(target=_serve, args=(server, target), daemon=True)
            thread.start()
            try:
                yield {"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force"}
            finally:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                thread.join(5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(server: socket.socket, target: Target) -> None:
    while True:
        try:
            link, _ = server.accept()
        except OSError:  # closed: the block is over
            return
        with link, suppress(OSError):
            link.settimeout(5)
            if _uid(link) != os.getuid():
                continue
            asked = b""
            while not asked.endswith(b"\0") and (chunk := link.recv(4096)):
                asked += chunk
            answer = answer_for(target, asked.rstrip(b"\0").decode("utf-8", "replace"))
            if answer is not None:
                link.sendall(answer.encode() + b"\n")


def _uid(link: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)
