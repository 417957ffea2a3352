"""Sessions over SSH for probes and samplers (paramiko). The host proves who it is before anything of ours is sent."""

from __future__ import annotations

import base64
import logging
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from deployctl.errors import AuthenticationFailed, HostError, HostKeyChanged, HostKeyUnknown, HostUnreachable
from deployctl.hosts.keys import HostKey, KnownHosts, Policy, changed
from deployctl.hosts.secrets import AskSecret
from deployctl.hosts.target import Target

if TYPE_CHECKING:
    import paramiko

Ask = Callable[[str], bool]
_CHUNK = 65536
_KEEPALIVE_S = 5
_POLL_S = 0.004
_LINGER_S = 0.5
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_PROHIBITED = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED, RFC 4254, 5.1
_KINDS = ("ecdsa-sha2-nistp256", "ssh-rsa")  # after the kind that is negotiated first: ed25519


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
    """A connection that is authenticated both ways; a context manager.

    ``target`` is the one that was asked for, with every secret that was needed and learnt on the way in.
    """

    def __init__(
        self, target: Target, transport: paramiko.Transport, fingerprint: str, outer: Session | None = None
    ) -> None:
        self.target = target
        self.fingerprint = fingerprint
        self._transport = transport
        self._outer = outer

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

    def run_as_root(self, command: str, *, timeout: float = 30) -> Completed:
        """Run a shell command as root: as it is, or by sudo with the password that we have, which goes to its input."""
        if self.target.user == "root":
            return self.run(command, timeout=timeout)
        inner = f"sh -c {shlex.quote(command)}"
        if self.target.secrets.sudo is None:
            return self.run(f"sudo -n {inner}", timeout=timeout)
        return self.run(f"sudo -S -p '' {inner}", stdin=f"{self.target.secrets.sudo}\n", timeout=timeout)

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

    def forward(self, address: str, port: int, timeout: float) -> paramiko.Channel:
        """Open a connection from the host to another: what a jump is for. Raises HostUnreachable."""
        import paramiko

        try:
            return self._transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=timeout)
        except paramiko.ChannelException as error:
            if error.code == _PROHIBITED:
                raise HostUnreachable(
                    f"{self.target} does not let us jump on to {address}: it forbids forwarding",
                    hint="set `AllowTcpForwarding local` in the jump host's sshd_config",
                ) from error
            raise HostUnreachable(
                f"no SSH at {address}, port {port}, from the jump host {self.target}: {error.text}",
                hint=f"is the host up? ssh {self.target} nc -vz {address} {port}",
            ) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self.lost(str(error)) from error

    def renew(self) -> None:
        """Connect anew: the host was restarted. Its key must be the one that it had; raises what ``connect`` does."""
        fresh = connect(replace(self.target, fingerprint=self.fingerprint), "refuse")
        self.close()
        self._transport, self._outer = fresh._transport, fresh._outer

    def close(self) -> None:
        """Close the connection and everything that runs over it."""
        self._transport.close()
        if self._outer is not None:
            self._outer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def connect(
    target: Target,
    policy: Policy,
    *,
    timeout: float = 15,
    ask: Ask | None = None,
    ask_secret: AskSecret | None = None,
) -> Session:
    """Connect, by way of the target's jumps, check the host key, then authenticate: keys first, then a password.

    An unknown key is accepted by ``accept-new``, shown to ``ask`` (a question in, yes or no out) by ``ask``, and
    refused by ``refuse``, or when there is nobody to ask; a fingerprint that the target insists on decides alone.
    ``ask_secret`` is asked for a passphrase or password that is needed and was not given. Raises HostUnreachable,
    HostKeyUnknown, HostKeyChanged (before any authentication) or AuthenticationFailed.
    """
    outer = None
    if target.via is not None:
        outer = connect(target.via, policy, timeout=timeout, ask=ask, ask_secret=ask_secret)
        target = replace(target, via=outer.target)
    transport = None
    try:
        transport, key = _greet(target, timeout, outer)
        _check(target, key, KnownHosts(target.known_hosts).lookup(target), policy, ask)
        target = _authenticate(target, transport, ask_secret)
        transport.set_keepalive(_KEEPALIVE_S)
    except BaseException:
        if transport is not None:
            transport.close()
        if outer is not None:
            outer.close()
        raise
    return Session(target, transport, key.fingerprint, outer)


def _greet(target: Target, timeout: float, outer: Session | None) -> tuple[paramiko.Transport, HostKey]:
    """Exchange keys. A host has several: where a fingerprint is insisted on, any kind may be the one that was meant."""
    import paramiko

    known = KnownHosts(target.known_hosts).lookup(target)
    tries: tuple[str, ...] = ("",) if known or target.fingerprint is None else ("", *_KINDS)
    seen: paramiko.Transport | None = None
    for kind in tries:
        transport = _transport(target, timeout, outer)
        try:
            _prefer(transport, known, kind)
            transport.start_client(timeout=timeout)
            remote = transport.get_remote_server_key()
        except (paramiko.SSHException, OSError, EOFError) as error:
            transport.close()
            if seen is not None:
                continue  # it has no key of this kind
            raise HostUnreachable(
                f"{target} answers, but does not speak SSH with us: {error}",
                hint=f"look at the port: ssh -v -p {target.port} {target.user}@{target.address}",
            ) from error
        except BaseException:
            transport.close()
            raise
        key = HostKey(remote.get_name(), remote.asbytes())
        if seen is not None:
            seen.close()
        seen, last = transport, key
        if target.fingerprint in (None, key.fingerprint):
            break
    assert seen is not None
    return seen, last


def _transport(target: Target, timeout: float, outer: Session | None) -> paramiko.Transport:
    import paramiko

    # Its threads would print tracebacks of their own beside our errors, which say the same.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    sock: Any = outer.forward(target.address, target.port, timeout) if outer else _dial(target, timeout)
    try:
        transport = paramiko.Transport(sock)
    except BaseException:
        sock.close()
        raise
    transport.banner_timeout = timeout
    transport.auth_timeout = timeout
    return transport


def _dial(target: Target, timeout: float) -> socket.socket:
    try:
        return socket.create_connection((target.address, target.port), timeout=timeout)
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


def _prefer(transport: paramiko.Transport, known: tuple[HostKey, ...], kind: str) -> None:
    """Ask for the key types on file first, as OpenSSH does: a host with several keys is no stranger."""
    options = transport.get_security_options()
    kinds = {key.kind for key in known} | ({kind} if kind else set())
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in kinds))


def _check(target: Target, key: HostKey, known: tuple[HostKey, ...], policy: Policy, ask: Ask | None) -> None:
    store = KnownHosts(target.known_hosts)
    if any(key.same(old) and old.revoked for old in known):
        raise HostKeyChanged(f"{target} presents a host key that {store.path} marks as revoked: {key.fingerprint}")
    if target.fingerprint not in (None, key.fingerprint):
        raise HostKeyChanged(
            f"{target} presents the host key {key.kind} {key.fingerprint}, but {target.fingerprint} is expected; "
            "somebody may be in between, so nothing was sent",
            hint="compare it on the host's console; if the host was reinstalled, correct --host-key or hosts.yml",
        )
    trusted = tuple(old for old in known if not old.revoked)
    if any(key.same(old) for old in trusted):
        return
    if trusted:
        raise changed(store, target, key, trusted)
    if target.fingerprint == key.fingerprint:
        accepted = True
    elif policy == "ask" and ask is not None:
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


def _authenticate(target: Target, transport: paramiko.Transport, ask: AskSecret | None) -> Target:
    """Log in; returns the target with the secrets that were asked for on the way."""
    keys = _Keys(target, ask)
    tried = []
    # A password that was given without a key is what is meant: a server may count wrong keys and hang up.
    if target.secrets.password is None or target.key_file is not None:
        for label, key in keys.offered():
            tried.append(label)
            if _try(target, transport, partial(transport.auth_publickey, target.user, key)):
                return keys.target
    password, allowed = target.secrets.password, _allowed(target, transport)
    if transport.is_authenticated():  # it lets everybody in
        return keys.target
    by_password = [way for way in ("password", "keyboard-interactive") if way in allowed]
    if password is None and ask is not None and by_password:
        password = ask(f"Password of {target}")
    if password is not None:
        for way in by_password or ("password",):
            tried.append("the password")
            if _try(target, transport, partial(_by_password, transport, target.user, password, way)):
                return replace(keys.target, secrets=replace(keys.target.secrets, password=password))
    if tried:
        what = f"it refused {', '.join(dict.fromkeys(tried))}"
    elif keys.locked:
        what = f"{keys.locked[0]} has a passphrase, and no agent holds that key"
    else:
        what = "there is no key to offer: none in an agent, none in ~/.ssh"
    raise AuthenticationFailed(
        f"{target} let nobody in: {what}" + (f"; it accepts {', '.join(allowed)}" if allowed else ""),
        hint=(
            "give its passphrase: --passphrase ask"
            if keys.locked and not tried
            else "name the right key with --key FILE, give the password (--password ask), or install a key: "
            f"ssh-copy-id -p {target.port} {target.user}@{target.address}"
        ),
    )


def _try(target: Target, transport: paramiko.Transport, attempt: Callable[[], object]) -> bool:
    import paramiko

    try:
        attempt()
    except paramiko.AuthenticationException:  # a way that is not allowed counts as refused, too
        return False
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise HostUnreachable(f"{target} hung up during authentication: {error}") from error
    return bool(transport.is_authenticated())


def _allowed(target: Target, transport: paramiko.Transport) -> list[str]:
    """Ask which ways of logging in the host has left; the `none` request is what ssh begins with, too."""
    import paramiko

    try:
        transport.auth_none(target.user)
    except paramiko.BadAuthenticationType as error:
        return list(error.allowed_types)
    except (paramiko.SSHException, OSError, EOFError):
        return []
    return []


def _by_password(transport: paramiko.Transport, user: str, password: str, way: str) -> None:
    if way == "password":
        transport.auth_password(user, password, fallback=False)
    else:
        transport.auth_interactive(user, lambda _title, _text, prompts: [password for _ in prompts])


class _Locked(Exception):
    """The key file has a passphrase."""


class _Keys:
    """The keys to offer, in order; ``target`` learns the passphrase, ``locked`` names what could not be opened."""

    def __init__(self, target: Target, ask: AskSecret | None) -> None:
        self.target = target
        self.ask = ask
        self.locked: list[Path] = []

    def offered(self) -> Iterator[tuple[str, paramiko.PKey]]:
        if self.target.key_file is None:
            yield from _agent()
            for path in (Path.home() / ".ssh" / name for name in _DEFAULT_KEYS):
                if path.is_file():
                    try:
                        yield str(path), self._open(path)
                    except (_Locked, AuthenticationFailed):
                        continue
            return
        path = self.target.key_file.expanduser()
        try:
            yield str(path), self._open(path)
        except FileNotFoundError:
            raise AuthenticationFailed(
                f"there is no key file {path}", hint="name the right one with --key FILE"
            ) from None
        except _Locked:
            held = False
            for label, key in _agent(only=path.with_name(path.name + ".pub")):
                held = True
                yield label, key
            if not held and self.ask is not None:
                self._learn(self.ask(f"Passphrase of {path}"))
                yield str(path), _load(path, self.target.secrets.passphrase)

    def _open(self, path: Path) -> paramiko.PKey:
        try:
            return _load(path, self.target.secrets.passphrase)
        except _Locked:
            self.locked.append(path)
            raise

    def _learn(self, passphrase: str) -> None:
        self.target = replace(self.target, secrets=replace(self.target.secrets, passphrase=passphrase))


def _load(path: Path, passphrase: str | None) -> paramiko.PKey:
    import paramiko

    status = path.stat()
    if status.st_uid == os.getuid() and status.st_mode & 0o077:  # OpenSSH's own rule: it ignores such a key
        raise AuthenticationFailed(
            f"the key {path} can be read by others (mode {status.st_mode & 0o777:o}), so ssh will not use it",
            hint=f"chmod 600 {shlex.quote(str(path))}",
        )
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise
    except (paramiko.SSHException, TypeError, ValueError, OSError) as error:  # TypeError: cryptography's word for it
        locked = isinstance(error, paramiko.PasswordRequiredException | TypeError) or "password" in str(error).lower()
        if not locked:
            raise AuthenticationFailed(
                f"cannot read the key {path}: {error}", hint="name another with --key FILE"
            ) from error
    if passphrase is None:
        raise _Locked
    try:
        return paramiko.PKey.from_path(path, passphrase.encode())  # type: ignore[arg-type]  # it wants bytes
    except (paramiko.SSHException, TypeError, ValueError, OSError) as error:
        raise AuthenticationFailed(
            f"the passphrase does not open the key {path}", hint="give the right one: --passphrase ask"
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
