"""Reads one HTTP/1.1 response from bytes as they arrive: chunked, of known length, or until the peer closes. No I/O."""

from __future__ import annotations

_HEAD_LIMIT = 64 * 1024
_LINE_LIMIT = 4096


class BadHttp(ValueError):
    """The peer does not speak HTTP/1.1."""


class ResponseReader:
    """Feed it what the socket gives; it returns the bytes of the body (RFC 9112, sections 4 to 7).

    ``status`` is 0 until the head is complete. ``complete`` turns True at the end of the body; ``reusable`` says
    whether another request may follow on the same connection. Interim (1xx) responses are skipped.
    """

    __slots__ = ("_chunked", "_head", "_left", "_rest", "_trailer", "complete", "headers", "reusable", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.reusable = False
        self._head = b""
        self._chunked = False
        self._left = -1  # chunked: bytes of the current chunk and its CRLF; else bytes of the body; -1: until close
        self._rest = b""  # an incomplete chunk-size or trailer line
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the wire, return the body bytes among them; raises BadHttp."""
        if self._chunked:
            return self._feed_chunked(data)
        if self.status == 0:
            return self._feed_head(data)
        return self._feed_plain(data)

    def eof(self) -> bool:
        """The peer closed: return whether the body may be whole (only a body without a length may end so)."""
        whole = self.complete or (self.status != 0 and not self._chunked and self._left == -1)
        self.complete = True
        self.reusable = False
        return whole

    def _feed_head(self, data: bytes) -> bytes:
        self._head += data
        while True:
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                if len(self._head) > _HEAD_LIMIT or not b"HTTP/1.".startswith(self._head[:7]):
                    raise BadHttp(f"not a response head: {self._head[:40]!r}")
                return b""
            status = self._parse_head(self._head[:end])
            self._head = self._head[end + 4 :]
            if status >= 200:
                break
        self.status = status
        rest, self._head = self._head, b""
        if self.complete or not rest:
            return b""
        return self._feed_chunked(rest) if self._chunked else self._feed_plain(rest)

    def _parse_head(self, head: bytes) -> int:
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if version not in {"HTTP/1.1", "HTTP/1.0"} or not rest[:3].isdecimal():
            raise BadHttp(f"not a status line: {lines[0][:60]!r}")
        status = int(rest[:3])
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BadHttp(f"not a header: {line[:60]!r}")
            headers[name.lower()] = value.strip()
        self.headers = headers
        if status < 200:
            return status
        connection = headers.get("connection", "").lower()
        self.reusable = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
        coding = headers.get("transfer-encoding", "").lower()
        if coding:
            if coding != "chunked":
                raise BadHttp(f"transfer coding {coding!r}")
            self._chunked, self._left = True, 0
        elif "content-length" in headers:
            length = headers["content-length"]
            if not length.isdecimal():
                raise BadHttp(f"content-length {length[:40]!r}")
            self._left = int(length)
        if status in {204, 304} or (not self._chunked and self._left == 0):
            self.complete = True
        elif not self._chunked and self._left < 0:
            self.reusable = False
        return status

    def _feed_plain(self, data: bytes) -> bytes:
        if self._left < 0:
            return data
        body = data[: self._left]
        self._left -= len(body)
        if self._left == 0:
            self._finish(len(data) - len(body))
        return body

    def _feed_chunked(self, data: bytes) -> bytes:
        # The common case first, because it decides the client's speed: one whole chunk, alone in its segment.
        if not self._left and not self._rest:
            end = data.find(b"\r\n")
            if 0 < end < 9:
                size = self._size(data[:end])
                if size and len(data) == end + size + 4:
                    return data[end + 2 : -2]
        return self._feed_chunks(self._rest + data if self._rest else data)

    def _feed_chunks(self, data: bytes) -> bytes:
        self._rest = b""
        position, total = 0, len(data)
        parts: list[bytes] = []
        while position < total:
            if self._left:
                take = min(self._left, total - position)
                payload = min(take, max(0, self._left - 2))
                if payload:
                    parts.append(data[position : position + payload])
                self._left -= take
                position += take
                continue
            end = data.find(b"\r\n", position)
            if end < 0:
                if total - position > _LINE_LIMIT:
                    raise BadHttp("an endless chunk-size line")
                self._rest = data[position:]
                break
            line = data[position:end]
            position = end + 2
            if self._trailer:
                if not line:
                    self._finish(total - position)
                    break
                continue
            size = self._size(line)
            if size:
                self._left = size + 2
            else:
                self._trailer = True
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _finish(self, surplus: int) -> None:
        self.complete = True
        if surplus:  # bytes that belong to no response: nothing on this connection can be trusted any more
            self.reusable = False

    @staticmethod
    def _size(line: bytes) -> int:
        try:
            return int(line.partition(b";")[0], 16)
        except ValueError:
            raise BadHttp(f"not a chunk size: {line[:40]!r}") from None
