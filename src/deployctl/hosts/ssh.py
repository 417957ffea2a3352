"""Sessions over SSH for probes and samplers (paramiko). The host proves who it is before anything of ours is sent."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from deployctl.errors import AuthenticationFailed, HostError, HostKeyChanged, HostKeyUnknown, HostUnreachable
from deployctl.hosts.keys import HostKey, KnownHosts, Policy, changed
from deployctl.hosts.target import Target

if TYPE_CHECKING:
    import paramiko

Ask = Callable[[str], bool]
_CHUNK = 65536
_KEEPALIVE_S = 5
_POLL_S = 0.004
_LINGER_S = 0.5
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Completed:
    """How a remote command ended: its exit status, and what it wrote (decoded as UTF-8, bad bytes replaced)."""

    rc: int
    stdout: str
    stderr: str


class CommandTimeout(HostError):
    """A remote command gave no end in its time."""


class Lines:
    """The lines of a running command; ``close`` ends it, from any thread."""

    def __init__(self, session: Session, command: str, silence_s: float) -> None:
        self._channel = session.channel(command)
        self._channel.settimeout(silence_s)
        self._lines = self._read(session, command, silence_s)

    def close(self) -> None:
        """Close the channel: the command's next write fails, and iterating ends."""
        self._channel.close()

    def _read(self, session: Session, command: str, silence_s: float) -> Iterator[str]:
        rest = b""
        while True:
            try:
                chunk = self._channel.recv(_CHUNK)
            except TimeoutError:
                self.close()
                raise CommandTimeout(
                    f"{session.target}: `{_short(command)}` was silent for {silence_s:.0f} s"
                ) from None
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
        if not session.active:
            raise session.lost()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return next(self._lines)


class Session:
    """A connection that is authenticated both ways; a context manager."""

    def __init__(self, target: Target, transport: paramiko.Transport, fingerprint: str) -> None:
        self.target = target
        self.fingerprint = fingerprint
        self._transport = transport

    def run(self, command: str, *, stdin: str | bytes | None = None, timeout: float = 30) -> Completed:
        """Run ``command`` in the login shell and wait for its end, at most ``timeout`` seconds.

        Raises HostUnreachable when the connection breaks, CommandTimeout when the time is over (the command's
        channel is closed then).
        """
        deadline = time.monotonic() + timeout
        with closing(self.channel(command)) as channel:
            # Reading while writing: a command that answers before it has read everything must not block us both.
            data = memoryview(stdin.encode() if isinstance(stdin, str) else stdin or b"")
            out, err, sent, ended = bytearray(), bytearray(), 0, 0.0
            if not data:
                channel.shutdown_write()
            while True:
                moved = False
                if sent < len(data) and channel.send_ready():
                    try:
                        sent += channel.send(data[sent : sent + _CHUNK].tobytes())
                        if sent == len(data):
                            channel.shutdown_write()
                    except OSError:  # the command ended without reading the rest
                        sent = len(data)
                    moved = True
                while channel.recv_ready():
                    out += channel.recv(_CHUNK)
                    moved = True
                while channel.recv_stderr_ready():
                    err += channel.recv_stderr(_CHUNK)
                    moved = True
                if moved:
                    continue
                now = time.monotonic()
                if channel.exit_status_ready():
                    ended = ended or now
                    # What it left running may hold its output open: the exit status is the end, after a short grace.
                    if channel.eof_received or now - ended > _LINGER_S:
                        break
                elif channel.closed or not self._transport.is_active():
                    break
                elif now > deadline:
                    raise CommandTimeout(f"{self.target}: no end of `{_short(command)}` within {timeout:.0f} s")
                time.sleep(_POLL_S)
            if not channel.exit_status_ready() or not self._transport.is_active():
                raise self.lost()
            return Completed(channel.recv_exit_status(), out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    def lines(self, command: str, *, silence_s: float) -> Lines:
        """Start a command that goes on writing, and return its lines as they come.

        Iterating raises HostUnreachable when the connection breaks, CommandTimeout after ``silence_s`` without a byte.
        """
        return Lines(self, command, silence_s)

    def channel(self, command: str) -> paramiko.Channel:
        """Start ``command`` and return its channel; raises HostUnreachable."""
        import paramiko

        try:
            channel = self._transport.open_session(timeout=15)
            channel.exec_command(command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self.lost(str(error)) from error
        return channel

    @property
    def active(self) -> bool:
        """Whether the connection still stands, as far as anyone can know without sending."""
        return self._transport.is_active()

    def lost(self, why: str = "") -> HostUnreachable:
        """Build the error for a connection that broke."""
        return HostUnreachable(
            f"the SSH connection to {self.target} broke" + (f": {why}" if why else ""),
            hint=f"check the host, then: deployctl host check {self.target}",
        )

    def close(self) -> None:
        """Close the connection and everything that runs over it."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def connect(target: Target, policy: Policy, *, timeout: float = 15, ask: Ask | None = None) -> Session:
    """Connect, check the host key, then authenticate with a public key.

    An unknown key is accepted by ``accept-new``, shown to ``ask`` (a question in, yes or no out) by ``ask``, and
    refused by ``refuse``, or when there is nobody to ask. Raises HostUnreachable, HostKeyUnknown, HostKeyChanged
    (before any authentication) or AuthenticationFailed.
    """
    import paramiko

    transport = _transport(target, timeout)
    try:
        known = KnownHosts(target.known_hosts).lookup(target)
        _prefer(transport, known)
        try:
            transport.start_client(timeout=timeout)
            remote = transport.get_remote_server_key()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise HostUnreachable(
                f"{target} answers, but does not speak SSH with us: {error}",
                hint=f"look at the port: ssh -v -p {target.port} {target.user}@{target.address}",
            ) from error
        key = HostKey(remote.get_name(), remote.asbytes())
        _check(target, key, known, policy, ask)
        _authenticate(target, transport)
        transport.set_keepalive(_KEEPALIVE_S)
    except BaseException:
        transport.close()
        raise
    return Session(target, transport, key.fingerprint)


def _transport(target: Target, timeout: float) -> paramiko.Transport:
    import paramiko

    try:
        sock = socket.create_connection((target.address, target.port), timeout=timeout)
    except socket.gaierror as error:
        raise HostUnreachable(
            f"no such host: {target.address} ({error.strerror})", hint="check the spelling, or give an IP address"
        ) from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise HostUnreachable(
            f"no SSH at {target}: {why}",
            hint=f"is the host up, and is {target.port} its SSH port? --host {target.user}@{target.address}:PORT",
        ) from error
    try:
        transport = paramiko.Transport(sock)
    except BaseException:
        sock.close()
        raise
    transport.banner_timeout = timeout
    transport.auth_timeout = timeout
    return transport


def _prefer(transport: paramiko.Transport, known: tuple[HostKey, ...]) -> None:
    """Ask for the key types on file first, as OpenSSH does: a host with several keys is no stranger."""
    options = transport.get_security_options()
    kinds = {key.kind for key in known}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in kinds))


def _check(target: Target, key: HostKey, known: tuple[HostKey, ...], policy: Policy, ask: Ask | None) -> None:
    store = KnownHosts(target.known_hosts)
    if any(key.same(old) and old.revoked for old in known):
        raise HostKeyChanged(f"{target} presents a host key that {store.path} marks as revoked: {key.fingerprint}")
    trusted = tuple(old for old in known if not old.revoked)
    if any(key.same(old) for old in trusted):
        return
    if trusted:
        raise changed(store, target, key, trusted)
    if policy == "ask" and ask is not None:
        accepted = ask(f"The host key of {target} is not known yet: {key.kind} {key.fingerprint}. Accept it?")
    else:
        accepted = policy == "accept-new"
    if not accepted:
        raise HostKeyUnknown(
            f"the host key of {target} is not known: {key.kind} {key.fingerprint}; nothing was sent",
            hint=(
                "compare it on the host's console (for f in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $f; done), "
                "then run the command again with --accept-new"
            ),
        )
    store.add(target, key)


def _authenticate(target: Target, transport: paramiko.Transport) -> None:
    import paramiko

    tried = []
    for label, key in _credentials(target):
        tried.append(label)
        try:
            transport.auth_publickey(target.user, key)
        except paramiko.BadAuthenticationType as error:
            raise AuthenticationFailed(
                f"{target} accepts no public keys, only: {', '.join(error.allowed_types)}",
                hint="allow PubkeyAuthentication in the host's sshd_config",
            ) from error
        except paramiko.AuthenticationException:
            continue
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise HostUnreachable(f"{target} hung up during authentication: {error}") from error
        if transport.is_authenticated():
            return
    if tried:
        what = f"it refused {', '.join(tried)}"
    elif target.key_file is not None:
        what = f"{target.key_file} has a passphrase, and no agent holds that key"
    else:
        what = "there is no key to offer: none in an agent, none in ~/.ssh"
    raise AuthenticationFailed(
        f"{target} let nobody in: {what}",
        hint=(
            "name the right key with --key FILE, or install one: "
            f"ssh-copy-id -p {target.port} {target.user}@{target.address}"
        ),
    )


def _credentials(target: Target) -> Iterator[tuple[str, paramiko.PKey]]:
    if target.key_file is not None:
        path = target.key_file.expanduser()
        try:
            yield str(path), _load(path)
        except FileNotFoundError:
            raise AuthenticationFailed(
                f"there is no key file {path}", hint="name the right one with --key FILE"
            ) from None
        except _Locked:
            yield from _agent(only=path.with_name(path.name + ".pub"))
        return
    yield from _agent()
    for name in _DEFAULT_KEYS:
        path = Path.home() / ".ssh" / name
        if path.is_file():
            try:
                yield str(path), _load(path)
            except (_Locked, AuthenticationFailed):
                continue


class _Locked(Exception):
    """The key file has a passphrase."""


def _load(path: Path) -> paramiko.PKey:
    import paramiko

    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise
    except (paramiko.PasswordRequiredException, TypeError):  # cryptography says TypeError for a missing password
        raise _Locked from None
    except (paramiko.SSHException, ValueError, OSError) as error:
        if "password" in str(error).lower():
            raise _Locked from None
        raise AuthenticationFailed(
            f"cannot read the key {path}: {error}", hint="name another with --key FILE"
        ) from error


def _agent(only: Path | None = None) -> Iterator[tuple[str, paramiko.PKey]]:
    import paramiko

    wanted = base64.b64decode(only.read_text().split()[1]) if only is not None and only.is_file() else None
    if only is not None and wanted is None:
        return
    agent = paramiko.Agent()
    try:
        for key in agent.get_keys():
            if wanted is None or key.asbytes() == wanted:
                yield f"the agent's {key.get_name()}", key
    finally:
        agent.close()


def _short(command: str) -> str:
    first = next(iter(command.strip().splitlines()), "")
    return first if len(first) <= 60 else first[:57] + "…"
