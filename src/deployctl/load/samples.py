"""What is known of one request: when it should have started, what came when, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

NAN = math.nan


class Failure(StrEnum):
    """Why a request is not a success. Only a final frame with ``done: true`` is a success."""

    REFUSED = "refused"  # nobody listens at the address
    UNREACHABLE = "unreachable"  # no route, no such name, connecting failed otherwise
    RESET = "reset"  # the connection broke before the final frame
    TIMEOUT = "timeout"  # no final frame within the workload's timeout, counted from the intended start
    STATUS = "http_status"  # an HTTP status of 400 or more; see Sample.status
    STREAM = "stream_error"  # an error line in mid-stream, under status 200
    TRUNCATED = "truncated"  # the body ended without a final frame
    REDIRECT = "redirect"  # a redirect; never followed, it would measure another server
    ENCODING = "encoding"  # a compressed body, though none was asked for
    BAD_HTTP = "bad_http"  # not an HTTP/1.1 response
    BAD_UTF8 = "bad_utf8"
    BAD_JSON = "bad_json"
    BAD_COUNTERS = "bad_counters"  # the final frame counts what cannot be
    PROMPT_CUT = "prompt_cut"  # the server counted fewer prompt tokens than the prompt has words: it read only a part
    EMPTY = "empty"  # a final frame without any token before it: nobody was served
    CANCELLED = "cancelled"  # cut by our own stop: neither a hit nor a miss, see Sample.counts


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Points in time (``*_s`` up to ``end_s``) are seconds on the load process's monotonic clock.

    What never came is NaN (times) or 0 (counts). ``user`` numbers the users of a run, ``seq`` a user's requests from 0.
    ``think_s`` is the think time drawn before this request, so in a closed loop ``intended_s`` is the end of the
    user's previous request plus ``think_s``. ``sent_s`` is the moment at which the client set out to send (before it
    connects, where it must); ``sent_s - intended_s`` is the schedule delay. ``end_s`` is the arrival of the final
    frame, or the moment of failure. ``chunks`` counts streamed lines, which are not tokens: tokens are the
    server's own ``eval_count``. ``total_s`` to ``eval_s`` are the server's counters, converted from nanoseconds.
    """

    user: int
    seq: int
    intended_s: float
    sent_s: float = NAN
    first_byte_s: float = NAN
    first_token_s: float = NAN
    first_visible_s: float = NAN
    end_s: float = NAN
    think_s: float = 0.0
    turn: int = 0
    chunks: int = 0
    received_bytes: int = 0
    asked_prompt_tokens: int = 0
    asked_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    status: int = 0
    retry_after_s: float = NAN
    total_s: float = NAN
    load_s: float = NAN
    prompt_eval_s: float = NAN
    eval_s: float = NAN
    done_reason: str = ""
    error: str | None = None
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the final frame came and nothing was wrong."""
        return self.error is None

    @property
    def counts(self) -> bool:
        """Whether the request says anything about the server; one that our own stop cut does not."""
        return self.error != Failure.CANCELLED

    @property
    def ttft_s(self) -> float:
        """Time to first token of any kind from the intended start; infinite for a failed request.

        An answer without any text has its end as its first token: that is when its reader knows.
        """
        if self.error is not None:
            return math.inf
        return (self.end_s if math.isnan(self.first_token_s) else self.first_token_s) - self.intended_s

    @property
    def ttfvt_s(self) -> float:
        """Time to first *visible* token from the intended start; infinite for a failed request."""
        if self.error is not None:
            return math.inf
        return (self.end_s if math.isnan(self.first_visible_s) else self.first_visible_s) - self.intended_s

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first, (end - first) / (tokens - 1); 0 for a one-token answer."""
        if self.error is not None:
            return math.inf
        if self.output_tokens < 2 or math.isnan(self.first_token_s):
            return 0.0
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Intended start to final frame; infinite for a failed request."""
        return math.inf if self.error is not None else self.end_s - self.intended_s

    @property
    def schedule_delay_s(self) -> float:
        """How late the client set out to send."""
        return self.sent_s - self.intended_s

    @property
    def queue_s(self) -> float:
        """The server's own wait for a slot: total - load - prompt evaluation - generation (Ollama's counters)."""
        rest = self.total_s - sum(0.0 if math.isnan(part) else part for part in (self.load_s, self.prompt_eval_s))
        return max(0.0, rest - (0.0 if math.isnan(self.eval_s) else self.eval_s))


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Sample))


def to_columns(samples: list[Sample]) -> dict[str, list[Any]]:
    """Turn samples into one list per field; NaN becomes None, so that the result is valid JSON."""
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        values = [getattr(sample, name) for sample in samples]
        columns[name] = [None if isinstance(value, float) and value != value else value for value in values]
    return columns


def from_columns(columns: dict[str, list[Any]]) -> list[Sample]:
    """Invert `to_columns`."""
    nullable = {"error"}
    restored = [
        columns[name] if name in nullable else [NAN if value is None else value for value in columns[name]]
        for name in COLUMNS
    ]
    return [Sample(*row) for row in zip(*restored, strict=True)]
