"""How long a request takes that asks the server for nothing: what a tunnel, or any way to the server, adds."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from statistics import median
from time import monotonic

from deployctl.errors import HostUnreachable
from deployctl.load.connection import RECEIVE_BYTES, Address
from deployctl.load.http1 import BadHttp, ResponseReader


@dataclass(frozen=True)
class RoundTrip:
    """Seconds from sending a no-op request to its answer, over one kept connection."""

    requests: int
    p50_s: float
    max_s: float


def no_op(protocol: str) -> str:
    """Return the path of a request that costs a server of this protocol next to nothing."""
    return "/v1/models" if protocol == "openai" else "/api/version"


def round_trip(url: str, *, requests: int = 20, path: str = "/api/version", timeout_s: float = 10.0) -> RoundTrip:
    """Measure ``requests`` no-op requests to ``url``; the first one, which may wait for the connection, is left out.

    Measured through a tunnel and around it, the difference of the two is what the tunnel adds. Raises HostUnreachable.
    """
    address = Address.parse(url)
    request = f"GET {address.base}{path} HTTP/1.1\r\nHost: {address.authority}\r\n\r\n".encode("latin-1")
    times: list[float] = []
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(requests + 1):
                reader, begin = ResponseReader(), monotonic()
                sock.sendall(request)
                while not reader.complete:
                    data = sock.recv(RECEIVE_BYTES)
                    if not data:
                        raise BadHttp("the connection closed")
                    reader.feed(data)
                times.append(monotonic() - begin)
    except (OSError, BadHttp) as error:
        raise HostUnreachable(f"no answer from {url}{path}: {error}", hint="deployctl host check") from error
    return RoundTrip(requests, median(times[1:]), max(times[1:]))
