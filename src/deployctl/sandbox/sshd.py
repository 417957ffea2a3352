"""The sandbox's SSH server: keys only, loopback only, no other rights than the caller's, and a home of its own.

It runs in a child of the guardian. asyncssh does the protocol; the bytes of a command are pumped here, because
asyncssh's own redirection to a subprocess loses the tail of a large standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import pwd
import signal
import struct
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncssh

from deployctl.sandbox import processes

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_BLOCK = 1 << 16


def _key(path: Path) -> asyncssh.SSHKey:
    """Load a private key, made at the first call: ed25519, mode 0600, the public half beside it."""
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-ed25519", comment="deployctl sandbox")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.export_private_key())
        path.with_name(f"{path.name}.pub").write_bytes(key.export_public_key())
    return asyncssh.read_private_key(path)


class _Server(asyncssh.SSHServer):
    """One connection: the caller's own user, authorised keys, forwarding to loopback ports alone."""

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's signature
        return True

    def connection_requested(self, dest_host: str, *_: object) -> bool:
        if dest_host not in _LOOPBACK:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, f"only loopback ports are forwarded, not {dest_host}"
            )
        return True


class _Files(asyncssh.SFTPServer):
    """SFTP on the caller's files; a relative path starts in the home."""

    def exit(self) -> None:
        """Report success at the end: OpenSSH's scp takes a session without an exit status for a failure."""
        super().exit()
        self.channel.exit(0)


class Commands:
    """Runs what clients ask for, as ``/bin/sh -c`` in the sandbox's home."""

    def __init__(self, root: Path) -> None:
        self._root, self._home = root, root / "home"
        self._user = pwd.getpwuid(os.getuid()).pw_name

    def _environment(self, asked: dict[str, str]) -> dict[str, str]:
        return {
            **asked,
            "HOME": str(self._home),
            "USER": self._user,
            "LOGNAME": self._user,
            "SHELL": "/bin/sh",
            "TMPDIR": str(self._root / "tmp"),
            "LANG": asked.get("LANG", "C.UTF-8"),
            # The engine's front is a Python program: it shall find the interpreter that Ansible uses.
            "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            processes.MARK: str(self._root),
        }

    async def handle(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run one command or shell to its end and report how it ended."""
        command = process.command
        if command:
            # Ansible asks for the user's home by the user's name, which the shell looks up in /etc/passwd.
            command = command.replace(f"echo ~{self._user} ", "echo ~ ")
        argv = ["/bin/sh", "-c", command] if command else ["/bin/sh", "-l"]
        environment = self._environment({str(key): str(value) for key, value in process.env.items()})
        try:
            run = self._on_terminal if process.term_type else self._on_pipes
            code = await run(process, argv, environment)
        except OSError as error:
            process.stderr.write(f"sandbox: {error}\n".encode())
            code = 127
        with contextlib.suppress(OSError, asyncssh.Error):
            if code < 0:
                process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                process.exit(code)

    async def _on_pipes(
        self, process: asyncssh.SSHServerProcess[bytes], argv: list[str], environment: dict[str, str]
    ) -> int:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._home,
            env=environment,
            start_new_session=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeder = asyncio.create_task(_feed(process, child.stdin, child.pid))
        # As with OpenSSH, a session ends when the command has ended *and* nobody holds its output open.
        await asyncio.gather(
            _drain(child.stdout.read, process.stdout, child.pid), _drain(child.stderr.read, process.stderr, child.pid)
        )
        code = await child.wait()
        feeder.cancel()
        await asyncio.wait([feeder])
        return code

    async def _on_terminal(
        self, process: asyncssh.SSHServerProcess[bytes], argv: list[str], environment: dict[str, str]
    ) -> int:
        master, slave = os.openpty()
        _resize(slave, process.term_size)
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=self._home,
                env={**environment, "TERM": process.term_type or "dumb"},
                start_new_session=True,
                preexec_fn=_take_terminal,
            )
        finally:
            os.close(slave)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(master), "rb", buffering=0)
        )

        async def read(size: int) -> bytes:
            try:
                return await reader.read(size)
            except OSError:  # a terminal whose other side is closed says EIO instead of end of file
                return b""

        feeder = asyncio.create_task(_type(process, master, child.pid))
        await _drain(read, process.stdout, child.pid)
        code = await child.wait()
        feeder.cancel()
        await asyncio.wait([feeder])
        transport.close()
        os.close(master)
        return code


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _resize(descriptor: int, size: tuple[int, int, int, int]) -> None:
    columns, rows, width, height = size
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _read(process: asyncssh.SSHServerProcess[bytes], pid: int) -> bytes:
    """Read what the client sends next; signals and window sizes come as exceptions and are acted on."""
    while True:
        try:
            return await process.stdin.read(_BLOCK)
        except asyncssh.SignalReceived as received:
            number = getattr(signal, f"SIG{received.signal}", None)
            if number is not None:
                _signal_group(pid, number)
        except asyncssh.BreakReceived:
            _signal_group(pid, signal.SIGINT)
        except asyncssh.TerminalSizeChanged as changed:
            raise _Resized((changed.width, changed.height, changed.pixwidth, changed.pixheight)) from changed
        except (asyncssh.Error, OSError):
            return b""


class _Resized(Exception):
    def __init__(self, size: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.size = size


async def _feed(process: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter, pid: int) -> None:
    """Pump the client's input into the command until either ends it."""
    try:
        while data := await _read(process, pid):
            stdin.write(data)
            await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command does not read its input to the end
    finally:
        stdin.close()
    with contextlib.suppress(asyncssh.Error, OSError):
        await process.channel.wait_closed()
    # Cancelled when the command ends, so here the client went first: a silent command has to learn of it too.
    _signal_group(pid, signal.SIGHUP)


async def _type(process: asyncssh.SSHServerProcess[bytes], master: int, pid: int) -> None:
    """Pump what the client types into the terminal."""
    while True:
        try:
            data = await _read(process, pid)
        except _Resized as resized:
            _resize(master, resized.size)
            continue
        if not data:
            return
        with contextlib.suppress(OSError):
            os.write(master, data)


async def _drain(read: Callable[[int], Awaitable[bytes]], writer: asyncssh.SSHWriter[bytes], pid: int) -> None:
    """Pump output to the client. When the client is gone the command is hung up on, and the rest is thrown away."""
    gone = False
    while data := await read(_BLOCK):
        if gone:
            continue
        try:
            writer.write(data)
            await writer.drain()
        except (asyncssh.Error, OSError):
            gone = True
            _signal_group(pid, signal.SIGHUP)


async def serve(root: Path) -> None:
    """Serve until SIGTERM. Writes one line of JSON to standard output when ready: port and host key."""
    commands = Commands(root)
    host_key = _key(root / "etc" / "ssh_host_ed25519_key")
    client_key = _key(root / "etc" / "id_ed25519")
    authorized = asyncssh.import_authorized_keys(client_key.export_public_key().decode())

    async def listen(port: int) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=_Server,
            server_host_keys=[host_key],
            authorized_client_keys=authorized,
            process_factory=commands.handle,
            sftp_factory=_Files,
            allow_scp=True,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            # The cheapest cipher with hardware support: tunnels of a load test run through this process.
            encryption_algs=["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com"],
            compression_algs=None,
            server_version="deployctl_sandbox",
            login_timeout=30,
        )

    port_file = root / "etc" / "port"
    wanted = int(port_file.read_text()) if port_file.exists() else 0
    try:
        acceptor = await listen(wanted)
    except OSError:  # somebody else took last time's port
        acceptor = await listen(0)
    port = acceptor.get_port()
    port_file.write_text(str(port))
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    public = host_key.export_public_key().decode().split()
    os.write(1, json.dumps({"port": port, "host_key": f"{public[0]} {public[1]}"}).encode() + b"\n")
    await stop.wait()
    acceptor.close()


def main(root: Path) -> None:
    """Run the server in ``root`` and, at the end, kill what was started through it."""
    for folder in ("etc", "home", "tmp"):
        (root / folder).mkdir(mode=0o700, exist_ok=True)
    logging.basicConfig(filename=root / "sshd.log", level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    # Under nohup SIGHUP comes ignored, and every command would inherit that: hanging up on it would end nothing. A
    # handler is not inherited.
    signal.signal(signal.SIGHUP, lambda *_: None)
    os.umask(0o022)  # as on a real host; the root itself is closed to others
    os.chdir(root / "home")  # relative paths of SFTP start here
    try:
        asyncio.run(serve(root))
    finally:
        processes.kill_all(root)
