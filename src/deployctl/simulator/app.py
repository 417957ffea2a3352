"""The simulated Ollama: routes, and the machine driven by the event loop's clock.

Rules of this face (the rest is the model's): a prompt has as many tokens as its text has whitespace-separated words;
an answer has ``num_predict`` tokens, or a length drawn from the scenario where that is absent. A slot keeps its last
conversation, as llama.cpp does, so the words that a new prompt shares with it from its beginning need no prefill.
OpenAI's ``/v1/chat/completions`` is the same model under another dress (openai.py).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deployctl.simulator import openai, payloads
from deployctl.simulator.http import Reply, Request
from deployctl.simulator.machine import Happening, Job, Machine
from deployctl.simulator.scenario import Scenario

_KEPT = 100_000  # finished requests that /simulator/requests still shows


@dataclass(frozen=True)
class Faults:
    """Shares of the requests that break in mid-stream: by an error line, or by a cut connection."""

    error_share: float = 0.0
    cut_share: float = 0.0


@dataclass(frozen=True)
class Options:
    """What a served model is called, its context in tokens, the seed of every draw, and injected faults."""

    model: str = "sim:latest"
    context: int = 32_768
    seed: int = 0
    faults: Faults = field(default_factory=Faults)


@dataclass(eq=False)
class _Call(Job):
    """A job with its client."""

    reply: Reply | None = None
    lines: payloads.Lines | openai.Events | None = None
    stream: bool = True
    reason: str = "stop"
    words: list[str] = field(default_factory=list, repr=False)
    thinking_tokens: int = 0
    breaks_after: int | None = None
    cut: bool = False
    slot: int = -1


class App:
    """Answers requests; ``loop.time()`` is its clock, 0 at construction."""

    def __init__(self, scenario: Scenario, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self.scenario = scenario
        self.options = options
        self._loop = loop
        self._began = loop.time()
        self._started_at = payloads.timestamp()
        self._models = [payloads.full_name(options.model)]
        self._loaded: str | None = self._models[0]
        seeds = np.random.SeedSequence(options.seed).spawn(2)
        self._rng = np.random.default_rng(seeds[0])
        self._machine = Machine(scenario.server, np.random.default_rng(seeds[1]), self._take_slot, self._free_slot)
        self._slots: list[list[str]] = [[] for _ in range(scenario.server.slots)]
        self._free = set(range(scenario.server.slots))
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._finished: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._refused = 0
        self._routes: dict[str, tuple[str, Callable[[Request, Reply], None]]] = {
            "/": ("GET", lambda _, reply: reply.send(b"Ollama is running", "text/plain; charset=utf-8")),
            "/api/version": ("GET", lambda _, reply: reply.send_json({"version": payloads.VERSION})),
            "/api/tags": ("GET", lambda _, reply: reply.send_json(payloads.tags(self._models, self._started_at))),
            "/api/ps": ("GET", lambda _, reply: reply.send_json(payloads.running(self._loaded, options.context))),
            "/api/show": ("POST", self._show),
            "/api/pull": ("POST", self._pull),
            "/api/chat": ("POST", self._answer),
            "/api/generate": ("POST", self._answer),
            "/v1/models": ("GET", lambda _, reply: reply.send_json(openai.models(self._models))),
            "/v1/chat/completions": ("POST", self._answer),
            "/simulator/state": ("GET", lambda _, reply: reply.send_json(self._state())),
            "/simulator/requests": ("GET", lambda _, reply: reply.send_json(list(self._finished))),
        }

    def __call__(self, request: Request, reply: Reply) -> None:
        """Answer one request, now or as the model gets to it."""
        method, handler = self._routes.get(request.path, ("", None))
        if handler is None:
            reply.send(b"404 page not found", "text/plain", 404)
        elif request.method != method and (request.method, method) != ("HEAD", "GET"):
            reply.send(b"405 method not allowed", "text/plain", 405)
        else:
            handler(request, reply)

    def _state(self) -> dict[str, Any]:
        self._tick()
        machine = self._machine
        return {
            "scenario": self.scenario.name,
            "uptime_s": self._now(),
            "active": machine.active,
            "waiting": len(machine.waiting),
            "finished": len(self._finished),
            "refused": self._refused,
        }

    def _body(self, request: Request, reply: Reply) -> dict[str, Any] | None:
        """Return the JSON object of a POST whose model exists; answer the error and return None otherwise."""

        def refuse(message: str, status: int) -> None:
            reply.send_json(openai.error(message, status) if _is_openai(request) else {"error": message}, status)

        try:
            body = json.loads(request.body or b"null")
        except ValueError as error:
            refuse(str(error), 400)
            return None
        model = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
        if body is None:
            refuse("missing request body", 400)
        elif not isinstance(model, str):
            refuse("model is required", 400)
        elif request.path != "/api/pull" and payloads.full_name(model) not in self._models:
            refuse(f"model '{model}' not found", 404)
        else:
            return {**body, "model": model}
        return None

    def _show(self, request: Request, reply: Reply) -> None:
        if self._body(request, reply) is not None:
            reply.send_json(payloads.show(self.scenario, self.options.context, self._started_at))

    def _pull(self, request: Request, reply: Reply) -> None:
        body = self._body(request, reply)
        if body is None:
            return
        name = payloads.full_name(body["model"])
        if name not in self._models:
            self._models.append(name)
        steps = payloads.pull_steps()
        if body.get("stream") is False:
            reply.send_json(steps[-1])
            return
        for index, line in enumerate(steps):
            reply.stream(json.dumps(line).encode() + b"\n", last=index == len(steps) - 1)

    def _answer(self, request: Request, reply: Reply) -> None:
        body = self._body(request, reply)
        if body is None:
            return
        lines: payloads.Lines | openai.Events = payloads.Lines(body["model"], request.path == "/api/chat")
        try:
            if _is_openai(request):
                asks_usage = (body.get("stream_options") or {}).get("include_usage") is True
                lines = openai.Events(body["model"], usage=asks_usage)
                body = openai.to_ollama(body)
            if request.path == "/api/generate":
                texts = [str(body.get("system") or ""), str(body.get("prompt") or "")]
            else:
                texts = [str(message.get("content") or "") for message in body.get("messages") or []]
            call = self._read_call(body, texts, reply, lines)
        except (TypeError, ValueError, AttributeError) as error:
            reply.send_json(lines.refused(f"invalid request: {error}", 400), 400)
            return
        if call is None:
            return
        self._tick()
        happened = self._machine.arrive(call)
        if happened is None:
            self._refused += 1
            reply.send_json(lines.refused(payloads.BUSY, 503), 503)
            return
        reply.on_close = lambda: self._leave(call)
        self._tell(happened)
        self._arm()

    def _read_call(
        self, body: dict[str, Any], texts: list[str], reply: Reply, lines: payloads.Lines | openai.Events
    ) -> _Call | None:
        """Turn a body into a call; None when it only loads or unloads the model (and has been answered)."""
        if not any(texts):
            if isinstance(lines, openai.Events):
                raise ValueError("no message has a text")
            unload = body.get("keep_alive") in (0, "0", "0s")
            self._loaded = None if unload else payloads.full_name(body["model"])
            reply.send_json(lines.final("unload" if unload else "load", {}))
            return None
        self._loaded = payloads.full_name(body["model"])
        options = body.get("options") or {}
        context = int(options.get("num_ctx") or self.options.context)
        words = " ".join(texts).split()[-max(1, context - 1) :] or [""]
        asked = int(options.get("num_predict") or -1)
        wanted = asked if asked > 0 else self._draw_length()
        output = max(1, min(wanted, context - len(words)))
        share = 0.0 if body.get("think") in (False, "false") else self.scenario.workload.thinking_share
        call = _Call(float(len(words)), output, reply=reply, lines=lines, words=words)
        call.stream = body.get("stream") is not False
        call.reason = "length" if asked > 0 or output < wanted else "stop"
        call.thinking_tokens = round(share * output)
        self._plan_fault(call)
        return call

    def _draw_length(self) -> int:
        return max(1, round(float(self.scenario.workload.output_tokens.sample(self._rng, 1)[0])))

    def _plan_fault(self, call: _Call) -> None:
        faults = self.options.faults
        if faults.error_share or faults.cut_share:
            drawn = self._rng.random()
            if drawn < faults.error_share + faults.cut_share:
                call.breaks_after = int(self._rng.integers(1, call.output_tokens + 1))
                call.cut = drawn >= faults.error_share

    def _take_slot(self, job: Job) -> None:
        """Give ``job`` the free slot whose last conversation begins most like its prompt; prefill only the rest."""
        assert isinstance(job, _Call)
        best, common = min(self._free), 0
        for slot in self._free:
            shared = _common_prefix(self._slots[slot], job.words)
            if shared > common:
                best, common = slot, shared
        self._free.remove(best)
        job.slot = best
        stated = len(job.words) * (1 - self.scenario.workload.shared_prefix)
        job.prompt_tokens = max(1.0, min(stated, len(job.words) - common))

    def _free_slot(self, job: Job) -> None:
        """Take the slot back; it keeps the conversation, with what was said of the answer."""
        assert isinstance(job, _Call)
        self._free.add(job.slot)
        self._slots[job.slot] = job.words + payloads.words(0, job.sent).split()

    def _leave(self, call: _Call) -> None:
        """The client has gone: free what it held."""
        self._tick()
        self._tell(self._machine.cancel(call))
        self._arm()

    def _now(self) -> float:
        return self._loop.time() - self._began

    def _tick(self) -> None:
        self._tell(self._machine.advance(self._now()))

    def _on_timer(self) -> None:
        self._timer_at = float("inf")
        self._tick()
        self._arm()

    def _arm(self) -> None:
        """Set the one timer to the machine's next event: an absolute time, so that lateness never adds up."""
        due = self._machine.next_s()
        if due != self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = None if due == float("inf") else self._loop.call_at(self._began + due, self._on_timer)

    def _tell(self, happened: list[Happening]) -> None:
        broken: list[_Call] = []
        created_at = ""
        for event in happened:
            call = event.job
            assert isinstance(call, _Call)
            if event.tokens == 0 or call.reply is None or call.reply.closed or call.reply.done:
                continue
            if call.breaks_after is not None and event.first + event.tokens >= call.breaks_after:
                self._break(call)
                broken.append(call)
                continue
            created_at = created_at or payloads.timestamp()
            self._write(call, event, created_at)
        for call in broken:
            self._leave(call)

    def _write(self, call: _Call, event: Happening, created_at: str) -> None:
        assert call.reply is not None
        assert call.lines is not None
        last = event.kind == "finished"
        if not call.stream:
            if last:
                self._note(call)
                thought = payloads.words(0, call.thinking_tokens)
                text = payloads.words(call.thinking_tokens, call.output_tokens - call.thinking_tokens)
                call.reply.send_json(call.lines.whole(call.reason, call, len(call.words), text, thought))
            return
        first = event.first
        thinking = min(max(call.thinking_tokens - first, 0), event.tokens)
        out = ""
        if thinking:
            out = call.lines.token(payloads.words(first, thinking), True, created_at)
        if event.tokens > thinking:
            out += call.lines.token(payloads.words(first + thinking, event.tokens - thinking), False, created_at)
        if last:
            self._note(call)
            out += call.lines.end(call.reason, call, len(call.words))
        call.reply.stream(out.encode(), last=last, content_type=call.lines.content_type)

    def _break(self, call: _Call) -> None:
        assert call.reply is not None
        assert call.lines is not None
        if call.cut:
            call.reply.abort()
        elif call.stream:
            broken = call.lines.broken(payloads.BROKEN).encode()
            call.reply.stream(broken, last=True, content_type=call.lines.content_type)
        else:
            call.reply.send_json(call.lines.refused(payloads.BROKEN, 500), 500)

    def _note(self, call: _Call) -> None:
        """Remember a finished request, in seconds of the machine's monotonic clock (shared by local processes)."""
        began = self._began
        self._finished.append(
            {
                "arrived_s": began + call.arrived_s,
                "started_s": began + call.started_s,
                "first_s": began + call.first_s,
                "ended_s": began + call.ended_s,
                "sent_s": self._loop.time(),
                "prompt_tokens": len(call.words),
                "output_tokens": call.output_tokens,
            }
        )


def _is_openai(request: Request) -> bool:
    return request.path.startswith("/v1/")


def _common_prefix(left: list[str], right: list[str]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
