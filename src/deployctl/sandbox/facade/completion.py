"""One request to the engine: llama-server's event stream in, raw JSON text of each token out.

This is the hot path: the text of a token is cut out of the event and passed on as it is, still JSON-escaped, without
decoding or encoding it. A quotation mark inside the text is always escaped, so the two marks below cannot occur in it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Callable

_CONTENT = b'data: {"index":0,"content":"'
_CONTENT_END = b'","tokens":['
_NOT_LAST = b'"stop":false'

STOPPED = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)


class EngineError(Exception):
    """The engine refused (its HTTP status) or broke off (500)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class EngineStream(asyncio.Protocol):
    """The connection of one request. ``done`` resolves to the last event, or raises EngineError."""

    def __init__(self, path: str, body: bytes, on_token: Callable[[bytes], None]) -> None:
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body
        self._on_token = on_token
        self._buffer = bytearray()
        self._status = 0
        self._chunked = False
        self._body = b""
        self.done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def pause(self, paused: bool) -> None:
        """Stop or resume reading: the client is slower than the engine."""
        if not self.transport.is_closing():
            (self.transport.pause_reading if paused else self.transport.resume_reading)()

    def data_received(self, data: bytes) -> None:
        """Take the head, then chunk after chunk."""
        buffer = self._buffer
        buffer += data
        if self._status == 0 and not self._read_head():
            return
        if not self._chunked:
            return  # a whole document; it ends with the connection
        at = 0
        while True:
            line_end = buffer.find(b"\r\n", at)
            if line_end < 0:
                break
            size = int(buffer[at:line_end], 16)
            end = line_end + 2 + size
            if len(buffer) < end + 2:
                break
            if size:
                self._read_events(bytes(buffer[line_end + 2 : end]))
            at = end + 2
        del buffer[:at]

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        del self._buffer[: end + 4]
        self._status = int(head.split(b" ", 2)[1])
        self._chunked = b"transfer-encoding: chunked" in head
        return True

    def _read_events(self, chunk: bytes) -> None:
        if self._body:
            chunk, self._body = self._body + chunk, b""
        *events, self._body = chunk.split(b"\n\n")
        for event in events:
            if event.startswith(_CONTENT):
                end = event.find(_CONTENT_END, len(_CONTENT))
                if end >= 0 and event.find(_NOT_LAST, end) >= 0:
                    if end > len(_CONTENT):  # half a character: the engine waits for its other half
                        self._on_token(event[len(_CONTENT) : end])
                    continue
            self._read_event(event)

    def _read_event(self, event: bytes) -> None:
        name, _, text = event.partition(b": ")
        if not name or name not in (b"data", b"error") or self.done.done():
            return  # an SSE comment: the engine's keep-alive ping
        value = json.loads(text)
        if name == b"error" or "error" in value:
            error = value.get("error", value)
            self.done.set_exception(EngineError(int(error.get("code", 500)), str(error.get("message", error))))
            return
        content = value.get("content", "")
        if content:
            self._on_token(json.dumps(content, ensure_ascii=False)[1:-1].encode())
        if value.get("stop"):
            self.done.set_result(value)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the outcome: a document, a refusal, or an end that came too early."""
        if self.done.done():
            return
        if self._status == 0:
            self.done.set_exception(EngineError(500, STOPPED))
        elif self._chunked:
            reason = str(exc) if exc else "unexpected EOF"
            self.done.set_exception(EngineError(500, f"an error was encountered while running the model: {reason}"))
        else:
            self._finish_document()

    def _finish_document(self) -> None:
        try:
            value = json.loads(bytes(self._buffer))
        except ValueError:
            value = {"error": {"message": STOPPED}}
        if self._status == 200 and "error" not in value:
            self.done.set_result(value)
            return
        error = value.get("error", value)
        message = error.get("message", error) if isinstance(error, dict) else error
        self.done.set_exception(EngineError(self._status if self._status >= 400 else 500, str(message)))


async def request(
    port: int,
    path: str,
    body: dict[str, Any],
    on_token: Callable[[bytes], None],
    on_start: Callable[[EngineStream], None] | None = None,
) -> dict[str, Any]:
    """Send one request to the engine on its own connection, and return its last event (or its one document).

    ``on_token`` gets the JSON-escaped text of each token. Cancelling closes the connection at once, which is how the
    engine learns that it may stop. Raises EngineError.
    """
    loop = asyncio.get_running_loop()
    data = json.dumps(body, ensure_ascii=False).encode()
    try:
        _, stream = await loop.create_connection(lambda: EngineStream(path, data, on_token), "127.0.0.1", port)
    except OSError as error:
        raise EngineError(500, STOPPED) from error
    if on_start is not None:
        on_start(stream)
    try:
        return await stream.done
    finally:
        stream.transport.abort()
