"""The pipes between this process and its parent, and the tasks that run beside the users."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import gevent
from gevent.event import Event
from gevent.os import make_nonblocking, nb_read, nb_write


class Channel:
    """The stdout of this process as a stream of events; whatever else is printed goes to stderr, which is a log."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)
        make_nonblocking(self._out)
        self._pending = bytearray()
        self._wake = Event()
        beside(self._write)

    def send(self, line: bytes) -> None:
        """Queue a line; never blocks."""
        self._pending += line
        self._wake.set()

    def flush(self) -> None:
        """Wait until everything is written."""
        while self._pending:
            gevent.sleep(0.005)

    def _write(self) -> NoReturn:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._pending:
                written = nb_write(self._out, bytes(self._pending[:65536]))
                del self._pending[:written]


def commands() -> Iterator[dict[str, Any]]:
    """Yield the parent's commands from stdin; ends when the parent closes it, or dies."""
    make_nonblocking(0)
    pending = b""
    while data := nb_read(0, 65536):
        *lines, pending = (pending + data).split(b"\n")
        yield from map(json.loads, lines)


def beside(task: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``task`` beside the users; if it fails, so does the process: half a load generator measures nothing."""
    greenlet = gevent.spawn(task, *arguments)
    greenlet.link_exception(lambda _: os._exit(70))
    return greenlet
