"""Reads streams with one callback per readable socket: a chunk costs neither a greenlet switch nor a wasted read.

gevent's own ``recv`` tries to read, fails, starts a watcher, switches to the hub, is switched back, and reads again.
Here one watcher stays on for the whole answer, the bytes go into the exchange inside the event loop's callback, and
the user's greenlet wakes once: when the answer is over.
"""

from __future__ import annotations

import socket
from time import monotonic
from typing import Any

from gevent import get_hub
from gevent.hub import Waiter

from deployctl.load.connection import RECEIVE_BYTES
from deployctl.load.exchange import Exchange


def pump_callback(sock: socket.socket, exchange: Exchange, deadline: float) -> None:
    """Read into ``exchange`` until it is finished; raises TimeoutError at ``deadline`` and what ``recv`` raises.

    ``sock`` is a gevent socket. Nothing in a callback may block or raise: errors are handed to the waiting greenlet.
    """
    hub = get_hub()
    waiter: Any = Waiter(hub)
    receive = sock._sock.recv  # type: ignore[attr-defined]  # the plain non-blocking socket inside gevent's
    feed = exchange.feed
    reading = hub.loop.io(sock.fileno(), 1)
    timer = hub.loop.timer(max(0.0, deadline - monotonic()))

    def readable() -> None:
        try:
            data = receive(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            reading.stop()
            waiter.switch(error)
            return
        try:
            finished = feed(data, monotonic())
        except Exception as error:  # noqa: BLE001 - an exception in a callback would be printed and forgotten
            reading.stop()
            waiter.switch(error)
            return
        if finished:
            reading.stop()
            waiter.switch(None)

    try:
        reading.start(readable)
        timer.start(waiter.switch, TimeoutError())
        error = waiter.get()
    finally:
        reading.close()
        timer.close()
    if error is not None:
        raise error
