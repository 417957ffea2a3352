"""/api/generate and /api/chat: load, wait for a slot, stream, count."""

from __future__ import annotations

import json
import time
from typing import Any

from . import completion, log, prompts
from .completion import EngineError
from .config import Config, parse_duration
from .connection import Connection, Request
from .engine import Runner
from .errors import ApiError
from .scheduler import Scheduler
from .store import Model, Store

_COUNTERS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)


def counters(last: dict[str, Any], started_ns: int, loaded_ns: int, now_ns: int) -> dict[str, int]:
    """Return Ollama's final counters, durations in nanoseconds, those that are zero left out.

    ``prompt_eval_count`` counts cached and processed tokens, its duration only the processing.
    """
    timings = last["timings"]
    values = (
        now_ns - started_ns,
        loaded_ns - started_ns,
        int(timings["prompt_n"]) + int(timings.get("cache_n", 0)),
        int(timings["prompt_ms"] * 1e6),
        int(timings["predicted_n"]),
        int(timings["predicted_ms"] * 1e6),
    )
    return {name: value for name, value in zip(_COUNTERS, values) if value}


class Reply:
    """Shapes and sends the answer of one request: a line per token, or one document at the end."""

    def __init__(self, connection: Connection, name: str, *, chat: bool, stream: bool) -> None:
        self._connection, self._name, self._chat, self._stream = connection, name, chat, stream
        key = b'","message":{"role":"assistant","content":"' if chat else b'","response":"'
        self._prefix = b'{"model":%b,"created_at":"' % json.dumps(name).encode()
        self._middle = key
        self._suffix = b'"},"done":false}\n' if chat else b'","done":false}\n'
        self._texts: list[bytes] = []

    def token(self, text: bytes) -> None:
        """Take the JSON-escaped text of one token."""
        if self._stream:
            now = log.rfc3339(time.time_ns()).encode()
            self._connection.stream(b"".join((self._prefix, now, self._middle, text, self._suffix)))
        else:
            self._texts.append(text)

    def finish(self, done_reason: str, counts: dict[str, int]) -> None:
        """Send the last line, or the whole document."""
        text = json.loads(b'"' + b"".join(self._texts) + b'"')
        body: dict[str, Any] = {"model": self._name, "created_at": log.rfc3339(time.time_ns())}
        body.update({"message": {"role": "assistant", "content": text}} if self._chat else {"response": text})
        body.update(done=True, done_reason=done_reason, **counts)
        if self._stream:
            self._connection.stream(json.dumps(body, ensure_ascii=False).encode() + b"\n")
            self._connection.end_stream()
        else:
            self._connection.send_json(200, body)


class Generation:
    """Answers both endpoints."""

    def __init__(self, config: Config, store: Store, scheduler: Scheduler) -> None:
        self._config, self._store, self._scheduler = config, store, scheduler

    async def generate(self, request: Request, connection: Connection) -> None:
        """POST /api/generate. Without a prompt it loads the model, or unloads it when keep_alive is 0."""
        body = request.json()
        prompt = str(body.get("prompt") or "")
        await self._run(request, connection, body, chat=False, prompt=prompt, messages=[])

    async def chat(self, request: Request, connection: Connection) -> None:
        """POST /api/chat. Without messages it loads or unloads, as above."""
        body = request.json()
        messages = body.get("messages") or []
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ApiError(400, "invalid request body: messages must be a list of objects")
        if not body.get("model"):
            raise ApiError(400, "model is required")
        await self._run(request, connection, body, chat=True, prompt="", messages=messages)

    async def _run(
        self,
        request: Request,
        connection: Connection,
        body: dict[str, Any],
        *,
        chat: bool,
        prompt: str,
        messages: list[dict[str, Any]],
    ) -> None:
        name = str(body.get("model") or "")
        model = self._store.get(name)
        self._refuse_what_it_cannot(name, body)
        keep_alive = _keep_alive(body)
        reply = Reply(connection, name, chat=chat, stream=body.get("stream") is not False)
        if not prompt and not messages and keep_alive == 0:
            await self._scheduler.unload(model)
            reply.finish("unload", {})
            return
        options = body.get("options") or {}
        load = prompts.load_options(options, self._config, self._store.header(model))
        runner = await self._scheduler.acquire(model, load, keep_alive)
        loaded_ns = time.monotonic_ns()
        try:
            if not prompt and not messages:
                reply.finish("load", {})
                return
            await runner.slots.acquire()
            try:
                text = await self._render(runner, model, body, prompt, messages)
                ask = prompts.engine_body(text, options, load.num_ctx, body.get("format"))
                await self._stream(runner, ask, reply, connection, request.started_ns, loaded_ns)
            finally:
                runner.slots.release()
        finally:
            self._scheduler.release(runner)

    def _refuse_what_it_cannot(self, name: str, body: dict[str, Any]) -> None:
        if not isinstance(body.get("options") or {}, dict):
            raise ApiError(400, "invalid request body: options must be an object")
        if body.get("images") or any(message.get("images") for message in body.get("messages") or []):
            raise ApiError(400, f"{name} does not support vision")
        if body.get("think"):
            raise ApiError(400, f'"{name}" does not support thinking')
        if body.get("tools"):
            raise ApiError(400, f"{name} does not support tools")

    async def _render(
        self, runner: Runner, model: Model, body: dict[str, Any], prompt: str, messages: list[dict[str, Any]]
    ) -> str:
        system = str(body.get("system") or model.system)
        if prompt and (body.get("raw") or not runner.header.chat_template):
            return f"{system}\n\n{prompt}" if system and not body.get("raw") else prompt
        conversation = messages or [{"role": "user", "content": prompt}]
        if system and conversation[0].get("role") != "system":
            conversation = [{"role": "system", "content": system}, *conversation]
        if not runner.header.chat_template:
            return prompts.base_model_prompt(conversation)
        try:
            answer = await completion.request(
                runner.port, "/apply-template", {"messages": conversation}, lambda _: None
            )
        except EngineError as error:
            raise ApiError(error.status, error.message) from error
        return prompts.without_bos(str(answer["prompt"]), runner.header)

    async def _stream(
        self,
        runner: Runner,
        ask: dict[str, Any],
        reply: Reply,
        connection: Connection,
        started_ns: int,
        loaded_ns: int,
    ) -> None:
        def connect_backpressure(stream: completion.EngineStream) -> None:
            connection.on_pause = stream.pause

        try:
            last = await completion.request(runner.port, "/completion", ask, reply.token, connect_backpressure)
        except EngineError as error:
            await runner.settled()
            detail = f": {runner.last_error}" if error.message == completion.STOPPED and runner.last_error else ""
            raise ApiError(error.status, error.message + detail) from error
        reason = "length" if last.get("stop_type") == "limit" else "stop"
        reply.finish(reason, counters(last, started_ns, loaded_ns, time.monotonic_ns()))


def _keep_alive(body: dict[str, Any]) -> float | None:
    value = body.get("keep_alive")
    if value is None:
        return None
    try:
        return parse_duration(value)
    except (ValueError, AttributeError) as error:
        raise ApiError(400, str(error)) from None
