"""The APIs that the load generator speaks: Ollama's own, and OpenAI's chat completions for other servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deployctl.load.script import Draw
from deployctl.load.spec import LoadSpec
from deployctl.load.streams import LineStream, NdjsonStream, SseStream

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Api:
    """One endpoint: its path, the request body for messages and a draw, the reader of its answer."""

    path: str
    accept: str
    body: Callable[[LoadSpec, Messages, Draw], dict[str, Any]]
    stream: Callable[..., LineStream]


def _ollama(spec: LoadSpec, draw: Draw) -> dict[str, Any]:
    return {
        "model": spec.model,
        "stream": True,
        "think": spec.workload.think,
        "options": {
            **spec.options,
            "num_predict": draw.output_tokens,
            "seed": draw.seed,
            "temperature": spec.temperature,
        },
    }


def _chat(spec: LoadSpec, messages: Messages, draw: Draw) -> dict[str, Any]:
    return {"messages": messages, **_ollama(spec, draw)}


def _generate(spec: LoadSpec, messages: Messages, draw: Draw) -> dict[str, Any]:
    return {"prompt": "\n\n".join(message["content"] for message in messages), **_ollama(spec, draw)}


def _completions(spec: LoadSpec, messages: Messages, draw: Draw) -> dict[str, Any]:
    return {
        **spec.options,
        "model": spec.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": draw.output_tokens,
        "seed": draw.seed,
        "temperature": spec.temperature,
    }


_OLLAMA = {
    "chat": Api("/api/chat", "application/x-ndjson", _chat, NdjsonStream),
    "generate": Api("/api/generate", "application/x-ndjson", _generate, NdjsonStream),
}
_OPENAI = Api("/v1/chat/completions", "text/event-stream", _completions, SseStream)


def api_of(spec: LoadSpec) -> Api:
    """Return the endpoint that a run asks."""
    return _OPENAI if spec.protocol == "openai" else _OLLAMA[spec.workload.api]
