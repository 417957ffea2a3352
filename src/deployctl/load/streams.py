"""Reads Ollama's streamed answer (NDJSON) from body bytes as they arrive: counts lines, finds first tokens. No I/O.

Only the lines up to the first visible token and the last line are parsed; the others are counted, because parsing all
of them would make the client the bottleneck. What that leaves unseen: a broken line in the middle whose neighbours are
whole. Invalid UTF-8 and error lines are found wherever they are.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from typing import Any

from deployctl.load.samples import NAN, Failure

_LINE_LIMIT = 16 * 1024 * 1024
_NS = 1e-9


@dataclass(frozen=True)
class Final:
    """The counters of the final frame; durations in seconds, NaN where the server left them out."""

    prompt_tokens: int
    output_tokens: int
    done_reason: str
    total_s: float = NAN
    load_s: float = NAN
    prompt_eval_s: float = NAN
    eval_s: float = NAN


class BadStream(ValueError):
    """The stream is not what the protocol promises."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class NdjsonStream:
    """The body of a streamed ``/api/chat`` or ``/api/generate``.

    ``times``, ``lines`` and ``sizes`` run parallel, one entry per read that completed at least one line: the moment,
    the number of lines, the bytes. Lines that came in one segment share a moment; that is all a client can know.
    """

    __slots__ = ("_last", "_tail", "first_token_s", "first_visible_s", "kept", "lines", "sizes", "times")

    def __init__(self, *, keep: bool = False) -> None:
        self.times = array("d")
        self.lines = array("I")
        self.sizes = array("I")
        self.first_token_s = NAN
        self.first_visible_s = NAN
        self.kept: list[bytes] | None = [] if keep else None
        self._tail = b""
        self._last = b""

    @property
    def chunks(self) -> int:
        """Lines so far, the final frame included."""
        return sum(self.lines)

    @property
    def last_line_s(self) -> float:
        """When the last whole line came; NaN before the first."""
        return self.times[-1] if self.times else NAN

    def feed(self, body: bytes, now: float) -> None:
        """Take body bytes that arrived at ``now``; raises BadStream for an error line, bad UTF-8 or bad JSON."""
        if self._tail:
            body = self._tail + body
            self._tail = b""
        if body[-1] != 10:
            cut = body.rfind(b"\n") + 1
            self._tail = body[cut:]
            if not cut:
                if len(body) > _LINE_LIMIT:
                    raise BadStream(Failure.BAD_JSON, "an endless line")
                return
            body = body[:cut]
        self.times.append(now)
        self.lines.append(body.count(b"\n"))
        self.sizes.append(len(body))
        self._last = body
        if self.kept is not None:
            self.kept.append(body)
        if not body.isascii():
            try:
                body.decode()
            except UnicodeDecodeError as error:
                raise BadStream(Failure.BAD_UTF8, str(error)) from None
        if self.first_visible_s != self.first_visible_s or b'"error"' in body:  # NaN: still looked for
            self._look(body, now)

    def finish(self, now: float) -> Final | None:
        """Parse what the body ended with; None without a final frame. Raises BadStream."""
        if self._tail.strip():  # a last line without its newline is whole only if it is JSON
            tail = self._tail + b"\n"
            self._tail = b""
            try:
                json.loads(tail)
            except ValueError:
                return None
            self.feed(tail, now)
        return self.final()

    def final(self) -> Final | None:
        """Return the counters if the last whole line is the final frame."""
        line = self._last.rstrip().rpartition(b"\n")[2]
        if not line:
            return None
        frame = _parse(line)
        if frame.get("done") is not True:
            return None
        return Final(
            prompt_tokens=int(frame.get("prompt_eval_count", 0)),
            output_tokens=int(frame.get("eval_count", 0)),
            done_reason=str(frame.get("done_reason", "")),
            total_s=frame.get("total_duration", NAN) * _NS,
            load_s=frame.get("load_duration", NAN) * _NS,
            prompt_eval_s=frame.get("prompt_eval_duration", NAN) * _NS,
            eval_s=frame.get("eval_duration", NAN) * _NS,
        )

    def text(self) -> str:
        """Return the visible answer; needs ``keep=True``."""
        if self.kept is None:
            raise ValueError("the answer was not kept")
        frames = [_parse(line) for line in b"".join(self.kept).splitlines() if line]
        return "".join(_visible(frame) for frame in frames)

    def _look(self, body: bytes, now: float) -> None:
        thinking = self.first_token_s == self.first_token_s
        # An escaped quote inside a string never yields these bytes, so such a segment shows nothing visible.
        nothing_visible = b'"content":""' in body or b'"response":""' in body
        if thinking and nothing_visible and body.count(b"\n") == 1 and b'"error"' not in body:
            return
        for line in body.splitlines():
            if not line.strip():
                continue
            frame = _parse(line)
            if "error" in frame:
                raise BadStream(Failure.STREAM, str(frame["error"]))
            visible = bool(_visible(frame))
            if self.first_token_s != self.first_token_s and (visible or _thought(frame)):
                self.first_token_s = now
            if self.first_visible_s != self.first_visible_s and visible:
                self.first_visible_s = now


def _parse(line: bytes) -> dict[str, Any]:
    try:
        frame = json.loads(line)
    except UnicodeDecodeError as error:
        raise BadStream(Failure.BAD_UTF8, str(error)) from None
    except ValueError as error:
        raise BadStream(Failure.BAD_JSON, f"{error}: {line[:80]!r}") from None
    if not isinstance(frame, dict):
        raise BadStream(Failure.BAD_JSON, f"not an object: {line[:80]!r}")
    return frame


def _visible(frame: dict[str, Any]) -> str:
    message = frame.get("message")
    found = message.get("content") if isinstance(message, dict) else frame.get("response")
    return found if isinstance(found, str) else ""


def _thought(frame: dict[str, Any]) -> bool:
    message = frame.get("message")
    holder = message if isinstance(message, dict) else frame
    return bool(holder.get("thinking") or holder.get("tool_calls"))
