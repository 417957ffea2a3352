"""How long the way to the server is: a no-op request through the tunnel, and the same on the host itself."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.errors import HostError
from deployctl.hosts.ssh import Session
from deployctl.load.roundtrip import no_op, round_trip

_REQUESTS = 20

# Run by the host's own Python. It answers with the median in seconds.
_AROUND = """
import socket, statistics, time
request = b"GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n"
times = []
with socket.create_connection(("127.0.0.1", {port}), 5) as sock:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range({requests} + 1):
        begin, data = time.monotonic(), b""
        sock.sendall(request)
        while True:
            piece = sock.recv(65536)
            if not piece:
                raise SystemExit("closed")
            data += piece
            head, blank, body = data.partition(b"\\r\\n\\r\\n")
            _, found, length = head.lower().partition(b"content-length:")
            whole = len(body) >= int(length.split()[0]) if found else body.endswith(b"0\\r\\n\\r\\n")
            if blank and whole:
                break
        times.append(time.monotonic() - begin)
print(statistics.median(times[1:]))
"""


@dataclass(frozen=True)
class Way:
    """Medians of a no-op request in seconds: ``through_s`` as the load goes, ``around_s`` on the host itself.

    ``around_s`` is None where nothing on the host could measure it.
    """

    through_s: float
    around_s: float | None = None

    @property
    def added_s(self) -> float | None:
        """What the way adds to one exchange."""
        return None if self.around_s is None else max(0.0, self.through_s - self.around_s)


def measure_way(url: str, protocol: str, session: Session | None = None, port: int = 0) -> Way:
    """Measure the way to ``url``; with a ``session`` on the host, also around it, at ``port`` of the host's loopback.

    Raises HostUnreachable where nothing answers at ``url``.
    """
    path = no_op(protocol)
    through = round_trip(url, requests=_REQUESTS, path=path)
    return Way(through.p50_s, None if session is None else _around(session, port, path))


def _around(session: Session, port: int, path: str) -> float | None:
    script = _AROUND.format(path=path, port=port, requests=_REQUESTS)
    try:
        answer = session.run("python3 -", stdin=script, timeout=15)
        return float(answer.stdout) if answer.rc == 0 else None
    except (HostError, ValueError):
        return None
