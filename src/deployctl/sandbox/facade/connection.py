"""HTTP/1.1 for one client connection, on asyncio's bare protocols: bodies in, JSON or NDJSON chunks out.

A client that hangs up cancels the request that it was waiting for, as Ollama does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Optional, Protocol

from . import log
from .errors import ApiError

_MAX_HEAD = 64 * 1024
_MAX_BODY = 256 * 1024 * 1024


class Sink(Protocol):
    """Where a body goes that is too large for memory."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""

    def finish(self) -> None:
        """The body is complete."""

    def abort(self) -> None:
        """The client went away."""


class Request:
    """One request: method, path without query, lower-case headers, and the body when it was kept in memory."""

    def __init__(self, method: str, path: str, headers: dict[str, str], version: str) -> None:
        self.method, self.path, self.headers, self.version = method, path, headers, version
        self.body = bytearray()
        self.sink: Sink | None = None
        self.started_ns = time.monotonic_ns()

    @property
    def keep_alive(self) -> bool:
        """Whether the connection lives on after the answer."""
        connection = self.headers.get("connection", "").lower()
        return connection == "keep-alive" if self.version == "HTTP/1.0" else connection != "close"

    def json(self) -> dict[str, Any]:
        """Parse the body as an object. Raises ApiError 400 in Ollama's words."""
        if not self.body.strip():
            raise ApiError(400, "missing request body")
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise ApiError(400, f"invalid request body: {error}") from None
        if not isinstance(value, dict):
            raise ApiError(400, "invalid request body: expected an object")
        return value


Handler = Callable[["Request", "Connection"], Awaitable[None]]
SinkFor = Callable[["Request"], Optional["Sink"]]


class Connection(asyncio.Protocol):
    """One client. Requests on it are answered one after the other."""

    def __init__(self, handler: Handler, sink_for: SinkFor) -> None:
        self._handler, self._sink_for = handler, sink_for
        self._buffer = bytearray()
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._remaining: int | None = 0  # bytes of the body still to come; None: chunked
        self._status = 0
        self._chunked = False
        self.on_pause: Callable[[bool], None] | None = None
        self.transport: asyncio.Transport

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel what the client was waiting for."""
        if self._task is not None:
            self._task.cancel()
        elif self._request is not None and self._request.sink is not None:
            self._request.sink.abort()

    def eof_received(self) -> bool:
        """Treat a half-closed connection as closed, as Go's server does."""
        return False

    def pause_writing(self) -> None:
        """Hold the source of a stream whose reader is slow."""
        if self.on_pause is not None:
            self.on_pause(True)

    def resume_writing(self) -> None:
        """Let it flow again."""
        if self.on_pause is not None:
            self.on_pause(False)

    def data_received(self, data: bytes) -> None:
        """Collect a request; one that is complete starts its handler."""
        self._buffer += data
        if self._task is None:
            self._advance()

    # requests in

    def _advance(self) -> None:
        try:
            if self._request is None and not self._read_head():
                return
            assert self._request is not None
            if not self._read_body(self._request):
                return
            if self._request.sink is not None:
                self._request.sink.finish()
        except ApiError as error:
            self._request = self._request or Request("?", "?", {}, "HTTP/1.1")
            self._request.headers["connection"] = "close"
            self.send_json(error.status, {"error": error.message})
            self.transport.close()
            return
        self._status, self._chunked = 0, False
        self._task = asyncio.get_running_loop().create_task(self._serve(self._request))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise ApiError(431, "request header fields too large")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise ApiError(400, "malformed request line")
        headers = {}
        for line in lines[1:]:
            key, _, value = line.partition(":")
            headers[key.strip().lower()] = value.strip()
        request = Request(words[0], words[1].partition("?")[0], headers, words[2])
        self._request = request
        length = headers.get("content-length", "0")
        if not length.isdigit():
            raise ApiError(400, "bad content length")
        self._remaining = None if "chunked" in headers.get("transfer-encoding", "").lower() else int(length)
        request.sink = self._sink_for(request)
        if headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _take(self, request: Request, data: memoryview) -> None:
        if request.sink is not None:
            request.sink.write(data)
        elif len(request.body) + len(data) > _MAX_BODY:
            raise ApiError(413, "request body too large")
        else:
            request.body += data

    def _read_body(self, request: Request) -> bool:
        if self._remaining is None:
            return self._read_chunks(request)
        with memoryview(self._buffer) as view, view[: self._remaining] as part:
            size = len(part)
            self._take(request, part)
        del self._buffer[:size]
        self._remaining -= size
        return self._remaining == 0

    def _read_chunks(self, request: Request) -> bool:
        at, done = 0, False
        with memoryview(self._buffer) as view:
            while not done:
                line_end = self._buffer.find(b"\r\n", at)
                if line_end < 0:
                    break
                try:
                    size = int(bytes(view[at:line_end]).partition(b";")[0], 16)
                except ValueError:
                    raise ApiError(400, "bad chunk") from None
                start = line_end + 2
                if len(view) < start + size + 2:
                    break
                if size:
                    with view[start : start + size] as part:
                        self._take(request, part)
                done = size == 0
                at = start + size + 2
        del self._buffer[:at]
        return done

    async def _serve(self, request: Request) -> None:
        try:
            await self._handler(request, self)
        except ApiError as error:
            self.send_error(error.status, error.message)
        except asyncio.CancelledError:
            self._status = self._status or 499
        except Exception as error:  # noqa: BLE001 - the client must get an answer, the log gets the kind
            log.info("internal error", level="ERROR", error=repr(error))
            self.send_error(500, f"internal error: {error}")
        finally:
            seconds = (time.monotonic_ns() - request.started_ns) / 1e9
            peer = self.transport.get_extra_info("peername") or ("-",)
            log.access(self._status, seconds, str(peer[0]), request.method, request.path)
            self._task, self._request, self.on_pause = None, None, None
            if not self.transport.is_closing():
                if request.keep_alive:
                    self._advance()
                else:
                    self.transport.close()

    # answers out

    def _head(self, status: int, content_type: str, framing: str) -> bytes:
        self._status = status
        assert self._request is not None
        closing = "" if self._request.keep_alive else "Connection: close\r\n"
        kind = f"Content-Type: {content_type}\r\n" if content_type else ""
        phrase = HTTPStatus(status).phrase if status != 499 else "Client Closed Request"
        return (
            f"HTTP/1.1 {status} {phrase}\r\n{kind}Date: {formatdate(usegmt=True)}\r\n{framing}{closing}\r\n"
        ).encode()

    def send(self, status: int, body: bytes = b"", content_type: str = "") -> None:
        """Answer with a whole body; HEAD gets the head alone."""
        head = self._head(status, content_type, f"Content-Length: {len(body)}\r\n")
        assert self._request is not None
        self.transport.write(head if self._request.method == "HEAD" else head + body)

    def send_json(self, status: int, value: object) -> None:
        """Answer with a JSON document."""
        self.send(status, json.dumps(value, ensure_ascii=False).encode(), "application/json; charset=utf-8")

    def send_error(self, status: int, message: str) -> None:
        """Answer with an error: a status before the first byte, a line in the stream after it."""
        if self.transport.is_closing():
            return
        if self._status == 0:
            self.send_json(status, {"error": message})
        elif self._chunked:
            self.stream(json.dumps({"error": message}, ensure_ascii=False).encode() + b"\n")
            self.end_stream()
        else:
            self.transport.close()

    def stream(self, line: bytes) -> None:
        """Send one line of a stream; the first one sends the head before it."""
        if self._status == 0:
            assert self._request is not None
            self._chunked = self._request.version != "HTTP/1.0"
            if not self._chunked:
                self._request.headers["connection"] = "close"
            framing = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
            head = self._head(200, "application/x-ndjson", framing)
            self.transport.write(head + (b"%x\r\n%b\r\n" % (len(line), line) if self._chunked else line))
        else:
            self.transport.write(b"%x\r\n%b\r\n" % (len(line), line) if self._chunked else line)

    def end_stream(self) -> None:
        """Finish a stream."""
        if self._chunked:
            self.transport.write(b"0\r\n\r\n")
