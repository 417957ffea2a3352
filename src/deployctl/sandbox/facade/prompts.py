"""From Ollama's requests to what the engine is asked: rendered prompts and sampling options."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .config import Config
from .engine import LoadOptions
from .errors import ApiError
from .gguf import Header

# Ollama's name → llama-server's name, and Ollama's default (api/types.go, DefaultOptions).
_SAMPLING: dict[str, tuple[str, Any]] = {
    "temperature": ("temperature", 0.8),
    "top_k": ("top_k", 40),
    "top_p": ("top_p", 0.9),
    "min_p": ("min_p", 0.0),
    "typical_p": ("typical_p", 1.0),
    "repeat_last_n": ("repeat_last_n", 64),
    "repeat_penalty": ("repeat_penalty", 1.0),
    "presence_penalty": ("presence_penalty", 0.0),
    "frequency_penalty": ("frequency_penalty", 0.0),
    "seed": ("seed", -1),
    "num_keep": ("n_keep", 4),
}


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ApiError(400, f'option "{name}" must be of type {"integer" if isinstance(default, int) else "float32"}')
    return value


def load_options(options: Mapping[str, Any], config: Config, header: Header) -> LoadOptions:
    """Pick the options that belong to the load; the context is capped at what the model was trained on."""
    context = max(4, int(_number(options, "num_ctx", config.context_length)))
    if header.training_context:
        context = min(context, header.training_context)
    return LoadOptions(context, int(_number(options, "num_batch", 512)) or 512, int(_number(options, "num_thread", 0)))


def engine_body(prompt: str, options: Mapping[str, Any], num_ctx: int, output_format: Any) -> dict[str, Any]:
    """Build llama-server's /completion request. An open-ended generation is bounded as in Ollama: 10 contexts."""
    limit = 10 * num_ctx
    wanted = int(_number(options, "num_predict", -1))
    body: dict[str, Any] = {
        "prompt": prompt,
        "stream": True,
        "cache_prompt": True,
        "n_predict": limit if wanted < 0 else min(wanted, limit),
    }
    for name, (theirs, default) in _SAMPLING.items():
        body[theirs] = _number(options, name, default)
    stop = options.get("stop") or []
    body["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if output_format == "json":
        body["json_schema"] = {"type": "object"}
    elif isinstance(output_format, dict):
        body["json_schema"] = output_format
    elif output_format:
        shown = json.dumps(output_format)
        raise ApiError(500, f'invalid format: {shown}; expected "json" or a valid JSON Schema object')
    return body


def base_model_prompt(messages: Iterable[Mapping[str, Any]]) -> str:
    """Render a conversation for a model without a chat template, as questions and answers.

    A base model continues text. Asked like this it goes on for hundreds of tokens, where the raw question alone gets
    another question and ChatML gets junk. The engine adds the BOS token itself.
    """
    parts = []
    for message in messages:
        text = str(message.get("content", ""))
        role = message.get("role")
        parts.append(f"Question: {text}" if role == "user" else f"Answer: {text}" if role == "assistant" else text)
    return "\n\n".join([*parts, "Answer:"])


def without_bos(prompt: str, header: Header) -> str:
    """Drop the BOS token from a rendered template: the engine adds one."""
    return prompt[len(header.bos) :] if header.bos and prompt.startswith(header.bos) else prompt
