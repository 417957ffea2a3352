"""Turns a finished exchange into a sample."""

from __future__ import annotations

from typing import Any

from deployctl.load.exchange import Exchange
from deployctl.load.samples import Sample


def to_sample(exchange: Exchange, **known: Any) -> Sample:
    """Return the sample of a finished exchange; ``known`` are the fields that the client itself decided."""
    stream, final = exchange.stream, exchange.final
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
        error=None if exchange.failure is None else exchange.failure.value,
        message=exchange.message,
    )
