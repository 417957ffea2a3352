"""One request and its streamed answer, as a state machine without I/O: bytes and clock readings in, an outcome out."""

from __future__ import annotations

import json
import math

from deployctl.load.http1 import BadHttp, ResponseReader
from deployctl.load.samples import NAN, Failure
from deployctl.load.streams import BadStream, Final, LineStream

_MESSAGE_LIMIT = 300
_ERROR_BODY_LIMIT = 8192
_OF_THE_CONNECTION = {Failure.TIMEOUT, Failure.RESET, Failure.TRUNCATED, Failure.CANCELLED}


class Exchange:
    """Feed it what the socket gives until `feed` says that nothing more is to be read.

    Afterwards ``failure`` is None and ``final`` holds the counters, or ``failure`` and ``message`` say what was wrong.
    A final frame makes the request a success whatever happens to the connection after it.
    """

    __slots__ = (
        "_error_body",
        "_http",
        "_streaming",
        "end_s",
        "failure",
        "final",
        "finished",
        "first_byte_s",
        "message",
        "retry_after_s",
        "stream",
    )

    def __init__(self, stream: LineStream) -> None:
        self.stream = stream
        self.first_byte_s = NAN
        self.end_s = NAN
        self.retry_after_s = NAN
        self.failure: Failure | None = None
        self.final: Final | None = None
        self.message = ""
        self.finished = False
        self._http = ResponseReader()
        self._streaming = False
        self._error_body: bytes | None = None

    @property
    def status(self) -> int:
        """The HTTP status, 0 before it is known."""
        return self._http.status

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._http.complete and self._http.reusable

    def feed(self, data: bytes, now: float) -> bool:
        """Take bytes that arrived at ``now`` (seconds, monotonic); b"" means that the peer closed. True: finished."""
        http = self._http
        try:
            if not data:
                self._closed(now)
                return True
            body = http.feed(data)
            if self._streaming:
                if body:
                    self.stream.feed(body, now)
            else:
                self._before_stream(body, now)
            if http.complete and not self.finished:
                self._conclude(now)
        except BadHttp as error:
            self.fail(Failure.BAD_HTTP, now, str(error))
        except BadStream as error:
            self.fail(error.failure, now, str(error))
        return self.finished

    def fail(self, failure: Failure, now: float, message: str = "") -> None:
        """End the exchange at ``now``; with the final frame there, a lost connection is a success all the same."""
        if self.finished:
            return
        self.finished = True
        if failure in _OF_THE_CONNECTION and self._settle_on_final():
            return
        self.failure, self.end_s, self.message = failure, now, message[:_MESSAGE_LIMIT]

    def _before_stream(self, body: bytes, now: float) -> None:
        if math.isnan(self.first_byte_s):
            self.first_byte_s = now
        status = self._http.status
        if not status:
            return
        headers = self._http.headers
        if 300 <= status < 400:
            self.fail(Failure.REDIRECT, now, f"{status} to {headers.get('location', '')}")
            return
        if headers.get("content-encoding", "identity").lower() != "identity":
            self.fail(Failure.ENCODING, now, headers["content-encoding"])
            return
        if status != 200:
            self._error_body = (self._error_body or b"") + body
            if len(self._error_body) > _ERROR_BODY_LIMIT:
                self._conclude(now)
            return
        self._streaming = True
        if body:
            self.stream.feed(body, now)

    def _closed(self, now: float) -> None:
        if not self._http.status:
            self.fail(Failure.RESET, now, "the connection closed before the response's head")
        elif self._http.eof():
            self._conclude(now)
        elif self._streaming:
            self.fail(Failure.TRUNCATED, now, "the connection closed inside the body")
        else:
            self._conclude(now)

    def _conclude(self, now: float) -> None:
        if not self._streaming:
            self.retry_after_s = _seconds(self._http.headers.get("retry-after", ""))
            self.fail(Failure.STATUS, now, _error_text(self._error_body or b""))
            return
        self.final = self.stream.finish(now)
        if self.final is None:
            self.fail(Failure.TRUNCATED, now, "the body ended without a final frame")
            return
        self.finished = True
        self.end_s = self.stream.last_line_s

    def _settle_on_final(self) -> bool:
        if not self._streaming:
            return False
        try:
            self.final = self.stream.final()
        except BadStream:
            return False
        if self.final is not None:
            self.end_s = self.stream.last_line_s
        return self.final is not None


def _seconds(retry_after: str) -> float:
    """Read ``Retry-After`` in seconds; its date form is left NaN, since it needs a clock that both sides share."""
    return float(retry_after) if retry_after.isdecimal() else NAN


def _error_text(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text
