"""Sends requests when they are due, however many are still open: nothing that the server does can hold one back."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import gevent
from gevent.pool import Group

from deployctl.load.arrivals import Arrival
from deployctl.load.child.ask import Session
from deployctl.load.child.channel import beside
from deployctl.load.connection import Connection
from deployctl.load.dialogue import Dialogue


class OpenLoop:
    """A stream of arrivals; each is a user of its own with a single request.

    The intended start comes from the schedule alone, so a late loop or a stalled server cannot thin the load out or
    hide a wait (coordinated omission). Connections are reused when they are free, and opened when none is.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._idle: list[Connection] = []
        self._open = Group()
        self._schedule: Any = None

    @property
    def running(self) -> bool:
        """Whether arrivals are still to come, or requests open."""
        return self._schedule is not None or len(self._open) > 0

    def start(self, arrivals: Iterator[Arrival], begin_s: float) -> None:
        """Begin; arrivals count from ``begin_s``."""
        self._schedule = beside(self._run, arrivals, begin_s)

    def stop(self) -> None:
        """Let nothing more arrive and wait until every open request has ended."""
        if self._schedule is not None:
            self._schedule.kill()
            self._schedule = None
        self._open.join()
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _run(self, arrivals: Iterator[Arrival], begin: float) -> None:
        for arrival in arrivals:
            due = begin + arrival.at_s
            wait = due - monotonic()
            if wait > 0:
                gevent.sleep(wait)
            self._open.spawn(self._serve, arrival, due, next(self._session.numbers))
        self._schedule = None

    def _serve(self, arrival: Arrival, due: float, number: int) -> None:
        connection = self._idle.pop() if self._idle else self._session.connect()
        dialogue = Dialogue(self._session.texts)
        dialogue.begin(1)
        try:
            self._session.ask(connection, dialogue, arrival.draw, user=number, seq=0, intended_s=due, text=arrival.text)
        finally:
            self._idle.append(connection)
