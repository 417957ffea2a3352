"""The closed-loop user for Locust: think, send, read the stream, think again. Subclassed by the locustfiles."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

from locust import User, task

from deployctl.load.child.ask import Session
from deployctl.load.dialogue import Dialogue
from deployctl.load.script import Draw, draws, first_think_s, generator

_PAUSE_AFTER_FAILURE_S = 0.25
"""At least this long after a failed request, so that users without think time do not hammer a server that refuses."""


class LoadUser(User):
    """One person. Latency counts from the intended start: the end of the previous request plus the drawn think time."""

    abstract = True
    session: Session

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        session = self.session
        self._number = next(session.numbers)
        self._rng = generator(session.spec.seed, self._number)
        self._first_think_s = first_think_s(session.spec.workload, self._rng)
        self._draws: Iterator[Draw] = draws(session.spec.workload, self._rng)
        self._draw = next(self._draws)
        self._dialogue = Dialogue(session.texts)
        self._connection = session.connect()
        self._seq = -1
        self._think_s = 0.0
        self._next_start = monotonic()

    def wait_time(self) -> float:
        """Return the seconds from now to the next intended start, for Locust."""
        return max(0.0, self._next_start - monotonic())

    @task
    def ask(self) -> None:
        """Make one request; the first call only begins the first think time, which Locust may interrupt."""
        session, dialogue = self.session, self._dialogue
        if self._seq < 0:
            self._seq = 0
            self._pause(self._first_think_s if session.think else 0.0, monotonic())
            return
        if dialogue.over:
            dialogue.begin(int(session.spec.workload.turns.sample_counts(self._rng, 1)[0]))
        sample = session.ask(
            self._connection,
            dialogue,
            self._draw,
            user=self._number,
            seq=self._seq,
            intended_s=self._next_start,
            think_s=self._think_s,
        )
        self._seq += 1
        self._draw = next(self._draws)
        think_s = self._draw.think_s if session.think else 0.0
        self._pause(think_s if sample.ok else max(think_s, _PAUSE_AFTER_FAILURE_S), sample.end_s)

    def on_stop(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _pause(self, think_s: float, since: float) -> None:
        self._think_s = think_s
        self._next_start = since + think_s
        self.session.recorder.thinks(self._number, self._next_start)
