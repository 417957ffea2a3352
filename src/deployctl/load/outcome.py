"""Turns a finished exchange into a sample."""

from __future__ import annotations

import math
from typing import Any

from deployctl.load.exchange import Exchange
from deployctl.load.samples import Failure, Sample
from deployctl.load.streams import Final

_LEAST_PER_WORD = 0.75
"""Tokens per word below which a prompt was not read whole. Tokenizers split at spaces, so a word is a token at least;
the few whose tokens may span words save up to a third (Liu et al., SuperBPE, arXiv:2503.13423)."""


def to_sample(exchange: Exchange, *, prompt_words: int = 0, **known: Any) -> Sample:
    """Return the sample of a finished exchange; ``known`` are the fields that the client itself decided.

    ``prompt_words``: words between spaces in everything that was sent; 0 leaves out the check of the server's count.
    """
    stream, final = exchange.stream, exchange.final
    error, message = exchange.failure, exchange.message
    if error is None and final is not None:
        error, message = _doubt(final, stream.chunks, math.isnan(stream.first_token_s), known.get("asked_tokens", 0))
        if error is None and 0 < final.prompt_tokens < _LEAST_PER_WORD * prompt_words:
            error = Failure.PROMPT_CUT
            message = f"{final.prompt_tokens} prompt tokens counted of {prompt_words} words: the context is too small"
    counters: dict[str, Any] = {}
    if final is not None:
        counters = {
            "prompt_tokens": final.prompt_tokens,
            "output_tokens": final.output_tokens,
            "done_reason": final.done_reason,
            "total_s": final.total_s,
            "load_s": final.load_s,
            "prompt_eval_s": final.prompt_eval_s,
            "eval_s": final.eval_s,
        }
    return Sample(
        **known,
        **counters,
        first_byte_s=exchange.first_byte_s,
        first_token_s=stream.first_token_s,
        first_visible_s=stream.first_visible_s,
        end_s=exchange.end_s,
        chunks=stream.chunks,
        received_bytes=sum(stream.sizes),
        status=exchange.status,
        retry_after_s=exchange.retry_after_s,
        error=None if error is None else error.value,
        message=message,
    )


def _doubt(final: Final, chunks: int, nothing_came: bool, asked: int) -> tuple[Failure | None, str]:
    """Say why an answer that ended well is none: no token at all, or a count that its own stream contradicts."""
    tokens = final.output_tokens
    if nothing_came and tokens == 0:
        return Failure.EMPTY, "the answer has no token"
    if tokens < 2 and chunks > 3:
        return Failure.BAD_COUNTERS, f"{tokens} tokens counted in {chunks} chunks"
    if asked and tokens > asked + 1:
        return Failure.BAD_COUNTERS, f"{tokens} tokens counted where at most {asked} were asked for"
    return None, ""
