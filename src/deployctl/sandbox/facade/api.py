"""Ollama's endpoints other than generation, and the table of routes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable
from datetime import datetime, timedelta, timezone
from typing import Any, Callable

from . import VERSION
from .config import Config
from .connection import Connection, Request, Sink
from .errors import ApiError, not_found
from .generation import Generation
from .pull import pull
from .scheduler import Scheduler
from .store import DEFAULT_REGISTRY, Store, parse_name

_BLOBS = "/api/blobs/"
# Ollama's "for ever" is the largest Go duration, about 292 years.
_FOREVER = timedelta(days=292 * 365)


class Api:
    """Answers requests: one method per endpoint."""

    def __init__(self, config: Config, store: Store, scheduler: Scheduler) -> None:
        self._store, self._scheduler = store, scheduler
        self._loaded_context = config.context_length
        generation = Generation(config, store, scheduler)
        self._routes: dict[tuple[str, str], Callable[[Request, Connection], Awaitable[None]]] = {
            ("GET", "/"): self._root,
            ("HEAD", "/"): self._root,
            ("GET", "/api/version"): self._version,
            ("HEAD", "/api/version"): self._version,
            ("GET", "/api/tags"): self._tags,
            ("HEAD", "/api/tags"): self._tags,
            ("GET", "/api/ps"): self._ps,
            ("POST", "/api/show"): self._show,
            ("POST", "/api/pull"): self._pull,
            ("POST", "/api/create"): self._create,
            ("POST", "/api/copy"): self._copy,
            ("DELETE", "/api/delete"): self._delete,
            ("POST", "/api/generate"): generation.generate,
            ("POST", "/api/chat"): generation.chat,
        }
        self._paths = {path for _, path in self._routes}

    def sink_for(self, request: Request) -> Sink | None:
        """Send the body of a blob upload to disk instead of to memory."""
        if request.method == "POST" and request.path.startswith(_BLOBS):
            return self._store.open_blob(request.path[len(_BLOBS) :])
        return None

    async def handle(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        handler = self._routes.get((request.method, request.path))
        if handler is not None:
            await handler(request, connection)
        elif request.path.startswith(_BLOBS) and request.method in ("HEAD", "POST"):
            self._blob(request, connection)
        elif request.path in self._paths:
            connection.send(405, b"405 method not allowed", "text/plain")
        else:
            connection.send(404, b"404 page not found", "text/plain")

    async def _root(self, _: Request, connection: Connection) -> None:
        connection.send(200, b"Ollama is running", "text/plain; charset=utf-8")

    async def _version(self, _: Request, connection: Connection) -> None:
        connection.send_json(200, {"version": VERSION})

    async def _tags(self, _: Request, connection: Connection) -> None:
        models = [
            {
                "name": model.name.short,
                "model": model.name.short,
                "modified_at": model.modified,
                "size": model.size,
                "digest": model.digest,
                "details": model.details,
            }
            for model in self._store.list()
        ]
        connection.send_json(200, {"models": models})

    async def _ps(self, _: Request, connection: Connection) -> None:
        models = []
        now = datetime.now(timezone.utc)
        for runner in self._scheduler.runners.values():
            if math.isinf(runner.keep_alive):
                expires = now + _FOREVER
            elif runner.references:
                expires = now + timedelta(seconds=runner.keep_alive)
            else:
                expires = now + timedelta(seconds=runner.expires_at - time.time())
            models.append(
                {
                    "name": runner.model.name.short,
                    "model": runner.model.name.short,
                    "size": runner.bytes,
                    "digest": runner.model.digest,
                    "details": runner.model.details,
                    "expires_at": expires.isoformat(),
                    "size_vram": 0,
                    "context_length": runner.options.num_ctx,
                }
            )
        connection.send_json(200, {"models": models})

    async def _show(self, request: Request, connection: Connection) -> None:
        model = self._store.get(_model_of(request.json()))
        header = self._store.header(model)
        template = header.chat_template or model.template or "{{ .Prompt }}"
        connection.send_json(
            200,
            {
                "modelfile": f"FROM {model.weights}\nTEMPLATE {json.dumps(template)}\n",
                "template": template,
                "system": model.system,
                "details": model.details,
                "model_info": {**header.metadata, "general.parameter_count": header.parameters},
                "capabilities": ["completion"],
                "modified_at": model.modified,
            },
        )

    async def _pull(self, request: Request, connection: Connection) -> None:
        """Pull from the registry that the name names; one without has only what is here already."""
        body = request.json()
        text = _model_of(body)
        name = parse_name(text)
        assert name is not None  # _model_of has looked
        progress = _Progress(connection, stream=body.get("stream") is not False)
        if name.registry == DEFAULT_REGISTRY and self._store.has(name):
            for status in ("pulling manifest", "verifying sha256 digest", "writing manifest"):
                progress.tell({"status": status})
        else:
            await pull(self._store, name, insecure=bool(body.get("insecure")), say=progress.tell)
        progress.finish()

    async def _create(self, request: Request, connection: Connection) -> None:
        body = request.json()
        name = parse_name(_model_of(body))
        if name is None:
            raise ApiError(400, "invalid model name")
        progress = _Progress(connection, stream=body.get("stream") is not False)
        template, system = str(body.get("template") or ""), str(body.get("system") or "")
        files = body.get("files") or {}
        if body.get("from"):
            base = self._store.get(str(body["from"]))
            weights, template, system = base.weights_digest, template or base.template, system or base.system
        elif isinstance(files, dict) and len(files) == 1:
            weights = str(next(iter(files.values())))
        elif files:
            raise ApiError(400, "the embedded engine takes exactly one GGUF file")
        else:
            raise ApiError(400, "neither 'from' or 'files' was specified")
        self._store.create(name, weights, template=template, system=system)
        progress.step("parsing GGUF")
        progress.step(f"using existing layer {weights}")
        progress.step("writing manifest")
        progress.finish()

    async def _copy(self, request: Request, connection: Connection) -> None:
        body = request.json()
        destination = parse_name(str(body.get("destination") or ""))
        if destination is None:
            raise ApiError(400, f'destination "{body.get("destination", "")}" is invalid')
        self._store.copy(str(body.get("source") or ""), destination)
        connection.send(200)

    async def _delete(self, request: Request, connection: Connection) -> None:
        name = _model_of(request.json())
        model = self._store.get(name)
        await self._scheduler.unload(model)
        self._store.delete(name)
        connection.send(200)

    def _blob(self, request: Request, connection: Connection) -> None:
        digest = request.path[len(_BLOBS) :]
        if request.method == "POST":  # the sink has checked and kept it
            connection.send(201)
            return
        try:
            with open(self._store.blob_path(digest), "rb"):
                connection.send(200)
        except FileNotFoundError:
            raise ApiError(404, f'blob "{digest}" not found') from None


def _model_of(body: dict[str, Any]) -> str:
    name = str(body.get("model") or body.get("name") or "")
    if not name:
        raise ApiError(400, "model is required")
    if parse_name(name) is None:
        raise not_found(name)
    return name


class _Progress:
    """The status lines of a pull or create: a stream, or the last one alone."""

    def __init__(self, connection: Connection, *, stream: bool) -> None:
        self._connection, self._stream = connection, stream

    def step(self, status: str) -> None:
        self.tell({"status": status})

    def tell(self, document: dict[str, Any]) -> None:
        if self._stream:
            self._connection.stream(json.dumps(document).encode() + b"\n")

    def finish(self) -> None:
        self.step("success")
        if self._stream:
            self._connection.end_stream()
        else:
            self._connection.send_json(200, {"status": "success"})
