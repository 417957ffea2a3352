"""Reads streamed answers from body bytes as they arrive: counts lines, finds first tokens. No I/O.

Only the lines up to the first visible token and the last ones are parsed; the others are counted, because parsing all
of them would make the client the bottleneck. What that leaves unseen: a broken line in the middle whose neighbours are
whole. Invalid UTF-8 and error lines are found wherever they are.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deployctl.load.samples import NAN, Failure

_LINE_LIMIT = 16 * 1024 * 1024
_NS = 1e-9
_MOST = 2**31  # no counter of a single answer comes near it


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


class LineStream:
    """What the streams have in common: bytes in, whole lines out.

    ``times``, ``lines`` and ``sizes`` run parallel, one entry per read that completed at least one line: the moment,
    the number of streamed chunks, the bytes. Chunks that came in one segment share a moment; that is all a client can
    know. ``first_token_s`` is the first text of any kind, ``first_visible_s`` the first that is not thinking.
    """

    __slots__ = ("_recent", "_tail", "first_token_s", "first_visible_s", "kept", "lines", "sizes", "times")

    def __init__(self, *, keep: bool = False, recent: int = 1) -> None:
        self.times = array("d")
        self.lines = array("I")
        self.sizes = array("I")
        self.first_token_s = NAN
        self.first_visible_s = NAN
        self.kept: list[bytes] | None = [] if keep else None
        self._tail = b""
        self._recent: deque[bytes] = deque(maxlen=recent)

    @property
    def chunks(self) -> int:
        """Streamed chunks so far, the final one included."""
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
        self.lines.append(self._count(body))
        self.sizes.append(len(body))
        self._recent.append(body)
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
        if self._tail.strip():  # a last line without its newline counts if it is whole
            tail, self._tail = self._tail, b""
            if not self._whole(tail):
                return None
            self.feed(tail + b"\n", now)
        return self.final()

    def final(self) -> Final | None:
        """Return the counters if the final frame has come."""
        raise NotImplementedError

    def text(self) -> str:
        """Return the visible answer; needs ``keep=True``."""
        raise NotImplementedError

    def _count(self, body: bytes) -> int:
        raise NotImplementedError

    def _look(self, body: bytes, now: float) -> None:
        raise NotImplementedError

    def _whole(self, line: bytes) -> bool:
        raise NotImplementedError

    def _everything(self) -> bytes:
        if self.kept is None:
            raise ValueError("the answer was not kept")
        return b"".join(self.kept)

    def _saw(self, now: float, *, visible: bool, thought: bool) -> None:
        if self.first_token_s != self.first_token_s and (visible or thought):
            self.first_token_s = now
        if self.first_visible_s != self.first_visible_s and visible:
            self.first_visible_s = now


def _count(frame: dict[str, Any], name: str) -> int:
    """Return a counter of the final frame, 0 where it is omitted; raises BadStream for what counts nothing."""
    value: Any = frame.get(name, 0)
    if type(value) is not int or not 0 <= value < _MOST:
        raise BadStream(Failure.BAD_COUNTERS, f"{name} is {value!r:.40}")
    return int(value)


def _duration(frame: dict[str, Any], name: str) -> float:
    """Return a duration of the final frame in seconds, NaN where it is omitted; raises BadStream for what is none."""
    value: Any = frame.get(name)
    if value is None:
        return NAN
    if type(value) not in (int, float) or not 0 <= value < _MOST * 1e9:
        raise BadStream(Failure.BAD_COUNTERS, f"{name} is {value!r:.40}")
    return float(value) * _NS


class NdjsonStream(LineStream):
    """The body of Ollama's streamed ``/api/chat`` or ``/api/generate``: one JSON object per line."""

    __slots__ = ()

    def final(self) -> Final | None:
        """Return the counters if the last whole line is the final frame."""
        line = self._recent[-1].rstrip().rpartition(b"\n")[2] if self._recent else b""
        if not line:
            return None
        frame = _parse(line)
        if frame.get("done") is not True:
            return None
        return Final(
            prompt_tokens=_count(frame, "prompt_eval_count"),
            output_tokens=_count(frame, "eval_count"),
            done_reason=str(frame.get("done_reason", "")),
            total_s=_duration(frame, "total_duration"),
            load_s=_duration(frame, "load_duration"),
            prompt_eval_s=_duration(frame, "prompt_eval_duration"),
            eval_s=_duration(frame, "eval_duration"),
        )

    def text(self) -> str:
        """Return the visible answer; needs ``keep=True``."""
        return "".join(_visible(_parse(line)) for line in self._everything().splitlines() if line)

    def _count(self, body: bytes) -> int:
        return body.count(b"\n")

    def _whole(self, line: bytes) -> bool:
        try:
            json.loads(line)
        except ValueError:
            return False
        return True

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
            self._saw(now, visible=bool(_visible(frame)), thought=_thought(frame))


class SseStream(LineStream):
    """The body of a streamed OpenAI-compatible ``/v1/chat/completions``: server-sent events, ``[DONE]`` at the end.

    The end is a ``finish_reason``; tokens are those of the ``usage`` that ``stream_options.include_usage`` asks for
    (without it, the number of chunks, which is no count of tokens). llama-server's ``timings`` give the durations.
    """

    __slots__ = ()

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(keep=keep, recent=8)  # finish_reason, usage and [DONE] may come in reads of their own

    def final(self) -> Final | None:
        """Return the counters if a finish reason has come."""
        reason = ""
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        for event in _events(b"".join(self._recent)):
            choices = event.get("choices") or [{}]
            reason = choices[0].get("finish_reason") or reason
            usage = event.get("usage") or usage
            timings = event.get("timings") or timings
        if not reason:
            return None
        return Final(
            prompt_tokens=int(usage.get("prompt_tokens", 0)),
            output_tokens=int(usage.get("completion_tokens", self.chunks)),
            done_reason=str(reason),
            prompt_eval_s=timings.get("prompt_ms", NAN) * 1e-3,
            eval_s=timings.get("predicted_ms", NAN) * 1e-3,
        )

    def text(self) -> str:
        """Return the visible answer; needs ``keep=True``."""
        return "".join(_delta(event).get("content") or "" for event in _events(self._everything()))

    def _count(self, body: bytes) -> int:
        return body.count(b"\ndata: {") + body.startswith(b"data: {")

    def _whole(self, line: bytes) -> bool:
        return line.startswith(b"data: [DONE]")

    def _look(self, body: bytes, now: float) -> None:
        for event in _events(body):
            if event.get("error"):
                error = event["error"]
                raise BadStream(Failure.STREAM, str(error.get("message", error) if isinstance(error, dict) else error))
            delta = _delta(event)
            thought = delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
            self._saw(now, visible=bool(delta.get("content")), thought=bool(thought))


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield _parse(data)
        elif line.startswith((b"error:", b"{")):  # llama-server before 2025, and gateways that forget to say "data:"
            yield _parse(line.removeprefix(b"error:").strip())


def _delta(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    delta = choices[0].get("delta") if isinstance(choices, list) and choices else None
    return delta if isinstance(delta, dict) else {}


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
