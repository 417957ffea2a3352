"""The second face of the simulated server: what a client of OpenAI's ``/v1/chat/completions`` asks and is told.

As Ollama's own ``/v1``: server-sent events, a ``finish_reason`` after the last token, the ``usage`` in a chunk of its
own where ``stream_options.include_usage`` asks for it, then ``[DONE]``. ``max_tokens`` or ``max_completion_tokens`` is
the number of tokens: a simulated model never stops early. Without either the length is drawn from the scenario.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from deployctl.simulator.machine import Job

_SERIAL = itertools.count(1)


def to_ollama(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of the ``/api/chat`` that asks for the same. Raises TypeError or ValueError where none does."""
    asked = body.get("max_completion_tokens")
    asked = body.get("max_tokens") if asked is None else asked
    return {
        "model": body["model"],
        "messages": [{**message, "content": _text(message.get("content"))} for message in body.get("messages") or []],
        "stream": body.get("stream") is True,
        "think": body.get("reasoning_effort") != "none",
        "options": {} if asked is None else {"num_predict": int(asked)},
    }


def _text(content: Any) -> str:
    """A message's text: it may come in parts, of which pictures and the like are no words."""
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content)
    return str(content or "")


def models(names: list[str]) -> dict[str, Any]:
    """Return the body of ``/v1/models``."""
    entries = [{"id": name, "object": "model", "created": int(time.time()), "owned_by": "library"} for name in names]
    return {"object": "list", "data": entries}


def error(message: str, status: int) -> dict[str, Any]:
    """Return an error's body."""
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


class Events:
    """Builds the server-sent events of one answer: the OpenAI side of ``payloads.Lines``."""

    content_type = "text/event-stream"

    def __init__(self, model: str, *, usage: bool) -> None:
        self.model = model
        self._usage = usage
        self._common = {"id": f"chatcmpl-{next(_SERIAL)}", "created": int(time.time()), "model": model}
        self._head = json.dumps({**self._common, "object": "chat.completion.chunk"}, separators=(",", ":"))[:-1]

    def token(self, text: str, thinking: bool, created_at: str) -> str:
        """Return the event of one chunk; ``text`` needs no escaping."""
        del created_at  # an answer has one time of creation here
        content = f'"content":"","reasoning":"{text}"' if thinking else f'"content":"{text}"'
        delta = f'{{"role":"assistant",{content}}}'
        return f'data: {self._head},"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}\n\n'

    def end(self, reason: str, job: Job, prompt_tokens: int) -> str:
        """Return the events after the last token."""
        last = f'{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":"{reason}"}}'
        out = f'data: {self._head},"choices":[{last}]}}\n\n'
        if self._usage:
            out += f'data: {self._head},"choices":[],"usage":{json.dumps(_usage(job, prompt_tokens))}}}\n\n'
        return out + "data: [DONE]\n\n"

    def whole(self, reason: str, job: Job, prompt_tokens: int, text: str, thinking: str) -> dict[str, Any]:
        """Return the document of an answer that is not streamed."""
        message = {"role": "assistant", "content": text, **({"reasoning": thinking} if thinking else {})}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = _usage(job, prompt_tokens)
        return {**self._common, "object": "chat.completion", "choices": [choice], "usage": usage}

    def broken(self, message: str) -> str:
        """Return the event of an error in mid-stream."""
        return f"data: {json.dumps(error(message, 500))}\n\n"

    def refused(self, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error before the first byte."""
        return error(message, status)


def _usage(job: Job, prompt_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": job.output_tokens,
        "total_tokens": prompt_tokens + job.output_tokens,
    }
