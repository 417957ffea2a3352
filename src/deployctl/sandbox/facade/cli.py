"""The command line of ``bin/ollama``: serve, and the few client commands that a person types on a host."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

from . import VERSION, log
from .config import Config, read_config

_USAGE = """usage: ollama serve | list | ps | pull MODEL | show MODEL | --version
The embedded engine: Ollama's API over llama.cpp's server."""


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; then end the children."""
    from .api import Api
    from .connection import Connection
    from .scheduler import Scheduler
    from .store import Store

    loop = asyncio.get_running_loop()
    store = Store(config.models)
    scheduler = Scheduler(config, store)
    api = Api(config, store, scheduler)
    server = await loop.create_server(
        lambda: Connection(api.handle, api.sink_for), config.host, config.port, backlog=1024
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    port = server.sockets[0].getsockname()[1]
    log.info("server config", env=json.dumps({k: v for k, v in os.environ.items() if k.startswith("OLLAMA_")}))
    log.info(f"Listening on {config.host}:{port} (version {VERSION})")
    await stop.wait()
    server.close()
    await scheduler.close()


def _call(config: Config, method: str, path: str, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Ask the running server; returns the documents of the answer. Raises OSError when there is none."""
    address = urlsplit(config.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    answers = [json.loads(line) for line in text.splitlines() if line.strip()]
    for answer in answers:
        if "error" in answer:
            raise SystemExit(f"Error: {answer['error']}")
    return answers


def _version(config: Config) -> None:
    try:
        running = str(_call(config, "GET", "/api/version")[0]["version"])
    except OSError:
        print("Warning: could not connect to a running Ollama instance")
        running = ""
    if running:
        print(f"ollama version is {running}")
    if running != VERSION:
        print(f"Warning: client version is {VERSION}")


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("    ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _client(config: Config, command: str, arguments: list[str]) -> None:
    if command in ("list", "ls"):
        models = _call(config, "GET", "/api/tags")[0]["models"]
        rows = [(m["name"], m["digest"][:12], _size(m["size"]), m["modified_at"]) for m in models]
        _table([("NAME", "ID", "SIZE", "MODIFIED"), *rows])
    elif command == "ps":
        models = _call(config, "GET", "/api/ps")[0]["models"]
        _table(
            [
                ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"),
                *(
                    (
                        m["name"],
                        m["digest"][:12],
                        _size(m["size"]),
                        "100% CPU",
                        str(m["context_length"]),
                        m["expires_at"],
                    )
                    for m in models
                ),
            ]
        )
    elif command == "show" and len(arguments) == 1:
        print(json.dumps(_call(config, "POST", "/api/show", {"model": arguments[0]})[0], indent=2))
    elif command == "pull" and len(arguments) == 1:
        for answer in _call(config, "POST", "/api/pull", {"model": arguments[0]}):
            print(answer["status"])
    else:
        raise SystemExit(_USAGE)


def main() -> None:
    """Run one command; exits with 1 when it fails."""
    command, *arguments = sys.argv[1:] or ["--help"]
    config = read_config(os.environ, sys.argv[0])
    if command in ("--help", "-h", "help"):
        print(_USAGE)
    elif command in ("--version", "-v"):
        _version(config)
    elif command in ("serve", "start"):
        try:
            asyncio.run(serve(config))
        except OSError as error:
            raise SystemExit(f"Error: {error}") from error
    else:
        try:
            _client(config, command, arguments)
        except OSError as error:
            raise SystemExit(f"Error: could not connect to ollama server, run 'ollama serve' ({error})") from error
