"""A small HTTP/1.1 server side on asyncio: keep-alive, pipelining, chunked replies. As cheap per chunk as can be."""

from __future__ import annotations

import asyncio
import json
import select
import selectors
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large"}
_REASONS |= {500: "Internal Server Error", 503: "Service Unavailable"}
_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True)
class Request:
    """One request: the method in capitals, the path without its query, the raw body."""

    method: str
    path: str
    body: bytes


class Reply:
    """The answer to one request. ``closed`` turns True when the client has gone; ``on_close`` is called then, once."""

    def __init__(self, protocol: HttpProtocol, keep_alive: bool, head_only: bool) -> None:
        self._protocol = protocol
        self._keep_alive = keep_alive
        self._head_only = head_only
        self._started = False
        self.done = False
        self.closed = False
        self.on_close: Callable[[], None] | None = None

    def send_json(self, payload: Any, status: int = 200) -> None:
        """Send a whole JSON document and end the reply."""
        body = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        self.send(body, "application/json; charset=utf-8", status)

    def send(self, body: bytes, content_type: str, status: int = 200) -> None:
        """Send a whole body and end the reply."""
        head = self._head(status, content_type) + b"Content-Length: %d\r\n\r\n" % len(body)
        self._protocol.write(head if self._head_only else head + body)
        self._end()

    def stream(self, data: bytes, *, last: bool = False, content_type: str = "application/x-ndjson") -> None:
        """Send one chunk; the first one carries status 200 and the headers, as Ollama does."""
        out = b"%x\r\n%b\r\n" % (len(data), data)
        if not self._started:
            self._started = True
            out = self._head(200, content_type) + b"Transfer-Encoding: chunked\r\n\r\n" + out
        self._protocol.write(out + b"0\r\n\r\n" if last else out)
        if last:
            self._end()

    def abort(self) -> None:
        """Break the connection in mid-stream, as a server that dies does."""
        self.done = True
        self._protocol.drop()

    def _head(self, status: int, content_type: str) -> bytes:
        connection = "" if self._keep_alive else "Connection: close\r\n"
        line = f"HTTP/1.1 {status} {_REASONS[status]}\r\nServer: deployctl-simulator\r\n{connection}"
        return (line + f"Content-Type: {content_type}\r\n").encode()

    def _end(self) -> None:
        self.done = True
        self._protocol.replied(self._keep_alive)


class HttpProtocol(asyncio.Protocol):
    """One connection. ``handler(request, reply)`` must answer, now or later; answers keep the order of requests."""

    def __init__(self, handler: Callable[[Request, Reply], None]) -> None:
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._pending: deque[tuple[Request, bool]] = deque()
        self._current: Reply | None = None
        self._told_to_continue = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is still answering that the client has gone."""
        del exc
        self._transport = None
        reply, self._current = self._current, None
        self._pending.clear()
        if reply is not None:
            reply.closed = True
            if reply.on_close is not None:
                reply.on_close()

    def data_received(self, data: bytes) -> None:
        """Collect whole requests and hand out the next one."""
        self._buffer += data
        while self._take_request():
            pass
        self._hand_out()

    def write(self, data: bytes) -> None:
        """Write to the client, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def drop(self) -> None:
        """Cut the connection without another byte."""
        self._current = None
        if self._transport is not None:
            self._transport.abort()

    def replied(self, keep_alive: bool) -> None:
        """Go on with the next request of this connection, or close it."""
        self._current = None
        if not keep_alive and self._transport is not None:
            self._transport.close()
        elif self._pending:
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        if self._current is None and self._pending and self._transport is not None:
            request, keep_alive = self._pending.popleft()
            self._current = reply = Reply(self, keep_alive, request.method == "HEAD")
            self._handler(request, reply)

    def _take_request(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return self._refuse(413, "headers too large") if len(self._buffer) > _MAX_HEAD else False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        parts = lines[0].split(" ")
        headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        length = headers.get("content-length", "0")
        if len(parts) != 3 or not length.isdecimal():
            return self._refuse(400, "bad request")
        if int(length) > _MAX_BODY:
            return self._refuse(413, "body too large")
        start = end + 4
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, after = _read_chunked(self._buffer, start)
        else:
            after = start + int(length)
            body = bytes(self._buffer[start:after]) if len(self._buffer) >= after else None
        if body is None:
            if headers.get("expect", "").lower() == "100-continue" and not self._told_to_continue:
                self._told_to_continue = True
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return self._refuse(413, "body too large") if len(self._buffer) > _MAX_BODY + _MAX_HEAD else False
        del self._buffer[:after]
        self._told_to_continue = False
        connection = headers.get("connection", "").lower()
        keep_alive = connection != "close" if parts[2] == "HTTP/1.1" else connection == "keep-alive"
        self._pending.append((Request(parts[0].upper(), parts[1].partition("?")[0], body), keep_alive))
        return bool(self._buffer)

    def _refuse(self, status: int, message: str) -> bool:
        self._buffer.clear()
        Reply(self, keep_alive=False, head_only=False).send_json({"error": message}, status)
        return False


def _read_chunked(buffer: bytearray, start: int) -> tuple[bytes | None, int]:
    """Read a chunked body from ``start``; None while it is incomplete. A bad size ends the body there."""
    body = bytearray()
    position = start
    while True:
        line_end = buffer.find(b"\r\n", position)
        if line_end < 0:
            return None, start
        try:
            size = int(bytes(buffer[position:line_end]).split(b";")[0], 16)
        except ValueError:
            return bytes(body), len(buffer)
        if len(buffer) < line_end + 4 + size:
            return None, start
        body += buffer[line_end + 2 : line_end + 2 + size]
        position = line_end + 4 + size
        if size == 0:
            return bytes(body), position


if sys.platform == "linux":

    class _PreciseSelector(selectors.EpollSelector):
        """An epoll selector that wakes on time: epoll itself rounds its time-out up to a whole millisecond."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are late by microseconds, not by up to a millisecond (Linux)."""
    return asyncio.SelectorEventLoop(_PreciseSelector() if sys.platform == "linux" else None)
