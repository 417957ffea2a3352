"""A keep-alive connection that carries one streamed request after another, on plain sockets.

Nothing in it knows gevent: in an interpreter that Locust has patched, the same calls yield to other users.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from deployctl.errors import UsageError
from deployctl.load.exchange import Exchange
from deployctl.load.samples import Failure

RECEIVE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Address:
    """Where an HTTP server listens. ``base`` is a path prefix without a trailing slash."""

    host: str
    port: int
    base: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read ``http://host[:port][/base]``; raises UsageError. No TLS: the way is an SSH tunnel."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError:
            port = 0
        if parts.scheme != "http" or not parts.hostname or not port or parts.query or parts.username:
            raise UsageError(f"not a URL of an Ollama server: {url}", hint="write http://host:port")
        return cls(parts.hostname, port, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """The Host header's value."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def request(self, path: str, body: bytes, accept: str = "application/x-ndjson") -> bytes:
        """Return the whole POST request for a JSON body."""
        head = (
            f"POST {self.base}{path} HTTP/1.1\r\nHost: {self.authority}\r\nContent-Type: application/json\r\n"
            f"Accept: {accept}\r\nAccept-Encoding: identity\r\nUser-Agent: deployctl\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


Pump = Callable[[socket.socket, Exchange, float], None]
"""Reads from a connected socket into an exchange until it is finished or the deadline (monotonic) has passed."""


def pump_plain(sock: socket.socket, exchange: Exchange, deadline: float) -> None:
    """Read with blocking calls."""
    while True:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        if exchange.feed(sock.recv(RECEIVE_BYTES), monotonic()):
            return


class Connection:
    """At most one socket to one address. Not for use by two users at once."""

    __slots__ = ("_address", "_pump", "_sock")

    def __init__(self, address: Address, pump: Pump = pump_plain) -> None:
        self._address = address
        self._pump = pump
        self._sock: socket.socket | None = None

    def run(self, request: bytes, exchange: Exchange, deadline: float) -> None:
        """Send ``request`` and read its answer into ``exchange``, which holds every failure; nothing is raised.

        ``deadline`` is a monotonic time: what is not final by then fails as `Failure.TIMEOUT`. A request is never sent
        twice; a connection that the server closed while it was idle is replaced before anything is sent.
        """
        try:
            sock = self._ready(deadline)
            sock.settimeout(max(0.001, deadline - monotonic()))
            sock.sendall(request)
            self._pump(sock, exchange, deadline)
        except TimeoutError:
            exchange.fail(Failure.TIMEOUT, monotonic())
        except ConnectionRefusedError as error:
            exchange.fail(Failure.REFUSED, monotonic(), str(error))
        except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError) as error:
            exchange.fail(Failure.RESET, monotonic(), str(error))
        except OSError as error:
            failure = Failure.UNREACHABLE if self._sock is None else Failure.RESET
            exchange.fail(failure, monotonic(), str(error))
        finally:
            if not exchange.reusable:
                self.close()

    def close(self) -> None:
        """Drop the socket, if there is one."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _ready(self, deadline: float) -> socket.socket:
        if self._sock is not None and self._went_away(self._sock):
            self.close()
        if self._sock is None:
            timeout = max(0.001, deadline - monotonic())
            self._sock = socket.create_connection((self._address.host, self._address.port), timeout)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._sock

    @staticmethod
    def _went_away(sock: socket.socket) -> bool:
        """Whether an idle connection has something to read: the end, or bytes that belong to no request."""
        sock.settimeout(0)
        try:
            sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True
