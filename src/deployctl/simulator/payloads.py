"""What the simulated Ollama says: the bodies of its API, as docs/api.md of Ollama describes them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from deployctl.simulator.machine import Job
from deployctl.simulator.scenario import Scenario

VERSION = "0.32.15"  # the Ollama release whose behaviour is imitated
BUSY = "server busy, please try again.  maximum pending requests exceeded"  # two spaces, as in Ollama's source
BROKEN = "an error was encountered while running the model: unexpected EOF"
SIZE = 1_000_000_000  # bytes; a round figure, so that nobody takes it for a real model
_DIGEST = "5106" * 16
_DETAILS = {
    "parent_model": "",
    "format": "gguf",
    "family": "simulated",
    "families": ["simulated"],
    "parameter_size": "1B",
    "quantization_level": "Q4_K_M",
}
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def full_name(model: str) -> str:
    """Return ``name:tag``, with Ollama's default tag where there is none."""
    return model if ":" in model.rsplit("/", 1)[-1] else f"{model}:latest"


def timestamp() -> str:
    """Return the wall-clock time as Go's JSON writes it, in UTC."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


def tags(models: Iterable[str], modified_at: str) -> dict[str, Any]:
    """Return the body of ``/api/tags``."""
    common = {"modified_at": modified_at, "size": SIZE, "digest": _DIGEST, "details": _DETAILS}
    return {"models": [{"name": name, "model": name, **common} for name in models]}


def running(model: str | None, context: int) -> dict[str, Any]:
    """Return the body of ``/api/ps``; ``model`` None: nothing is loaded."""
    if model is None:
        return {"models": []}
    entry = {"name": model, "model": model, "size": SIZE, "digest": _DIGEST, "details": _DETAILS}
    return {"models": [{**entry, "expires_at": "2318-01-01T00:00:00Z", "size_vram": SIZE, "context_length": context}]}


def show(scenario: Scenario, context: int, modified_at: str) -> dict[str, Any]:
    """Return the body of ``/api/show``."""
    capabilities = ["completion"] + (["thinking"] if scenario.workload.thinking_share > 0 else [])
    return {
        "license": "none: this is a simulation",
        "modelfile": f"# simulated: scenario {scenario.name}",
        "parameters": "",
        "template": "{{ .Prompt }}",
        "details": _DETAILS,
        "model_info": {
            "general.architecture": "simulated",
            "general.parameter_count": 1_000_000_000,
            "simulated.block_count": 16,
            "simulated.context_length": context,
            "simulated.embedding_length": 2048,
            "simulated.attention.head_count": 16,
            "simulated.attention.head_count_kv": 8,
        },
        "capabilities": capabilities,
        "modified_at": modified_at,
    }


def pull_steps() -> list[dict[str, Any]]:
    """Return the lines of a pull, in order."""
    layer = {"status": f"pulling {_DIGEST[:12]}", "digest": f"sha256:{_DIGEST}", "total": SIZE}
    return [
        {"status": "pulling manifest"},
        *({**layer, "completed": SIZE * part // 4} for part in (1, 2, 3, 4)),
        {"status": "verifying sha256 digest"},
        {"status": "writing manifest"},
        {"status": "success"},
    ]


def words(first: int, count: int) -> str:
    """Return the text of ``count`` tokens beginning with token ``first``: one word and its space each."""
    return "".join(f"{_WORDS[index % len(_WORDS)]} " for index in range(first, first + count))


class Lines:
    """Builds the NDJSON lines of one answer, most of each line once."""

    content_type = "application/x-ndjson"

    def __init__(self, model: str, chat: bool) -> None:
        self.model = model
        self._chat = chat
        self._head = f'{{"model":{json.dumps(model)},"created_at":"'

    def token(self, text: str, thinking: bool, created_at: str) -> str:
        """Return the line of one chunk; ``text`` needs no escaping."""
        if self._chat:
            content = f'"content":"","thinking":"{text}"' if thinking else f'"content":"{text}"'
            return f'{self._head}{created_at}","message":{{"role":"assistant",{content}}},"done":false}}\n'
        content = f'"response":"","thinking":"{text}"' if thinking else f'"response":"{text}"'
        return f'{self._head}{created_at}",{content},"done":false}}\n'

    def final(self, reason: str, counters: dict[str, int], text: str = "", thinking: str = "") -> dict[str, Any]:
        """Return the last message; ``text`` and ``thinking`` only where nothing was streamed."""
        thought = {"thinking": thinking} if thinking else {}
        body: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, **thought}}
            if self._chat
            else {"response": text, **thought}
        )
        head = {"model": self.model, "created_at": timestamp()}
        return {**head, **body, "done": True, "done_reason": reason, **counters}

    def end(self, reason: str, job: Job, prompt_tokens: int) -> str:
        """Return the line after the last token."""
        return json.dumps(self.final(reason, counters(job, prompt_tokens)), separators=(",", ":")) + "\n"

    def whole(self, reason: str, job: Job, prompt_tokens: int, text: str, thinking: str) -> dict[str, Any]:
        """Return the document of an answer that is not streamed."""
        return self.final(reason, counters(job, prompt_tokens), text, thinking)

    def broken(self, message: str) -> str:
        """Return the line of an error in mid-stream."""
        return json.dumps({"error": message}) + "\n"

    def refused(self, message: str, status: int) -> dict[str, Any]:
        """Return the body of an error before the first byte."""
        del status
        return {"error": message}


def counters(job: Job, prompt_tokens: int) -> dict[str, int]:
    """Return the final counters of a finished job: durations in nanoseconds, a zero left out (Go's omitempty).

    ``total_duration`` includes the wait for a slot; ``prompt_eval_count`` counts cached tokens too.
    """
    figures = {
        "total_duration": round((job.ended_s - job.arrived_s) * 1e9),
        "prompt_eval_count": prompt_tokens,
        "prompt_eval_duration": round((job.prefilled_s - job.started_s) * 1e9),
        "eval_count": job.output_tokens,
        "eval_duration": round((job.ended_s - job.prefilled_s) * 1e9),
    }
    return {key: value for key, value in figures.items() if value}
