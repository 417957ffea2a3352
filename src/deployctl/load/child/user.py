"""The closed-loop user for Locust: think, send, read the stream, think again. Subclassed by the locustfiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from time import monotonic
from typing import Any

import gevent
from gevent import GreenletExit
from locust import User, task

from deployctl.load.child.pump import pump_callback
from deployctl.load.child.recorder import Live, Recorder
from deployctl.load.connection import Address, Connection
from deployctl.load.dialogue import Dialogue, Texts
from deployctl.load.exchange import Exchange
from deployctl.load.outcome import to_sample
from deployctl.load.samples import Failure, Sample
from deployctl.load.script import Draw, draws, first_think_s, generator
from deployctl.load.spec import LoadSpec
from deployctl.load.streams import NdjsonStream

_PAUSE_AFTER_FAILURE_S = 0.25
"""At least this long after a failed request, so that users without think time do not hammer a server that refuses."""


class Session:
    """What all users of this process share."""

    def __init__(self, spec: LoadSpec, recorder: Recorder) -> None:
        self.spec = spec
        self.recorder = recorder
        self.texts = Texts(spec)
        self.address = Address.parse(spec.url)
        self.numbers = count(spec.first_user)
        self.think = True
        self.show: Callable[[Sample], None] | None = None  # by hand: Locust's own statistics


class OllamaUser(User):
    """One person. Latency counts from the intended start: the end of the previous request plus the drawn think time."""

    abstract = True
    session: Session

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        session = self.session
        self._number = next(session.numbers)
        rng = generator(session.spec.seed, self._number)
        self._turns = rng
        self._first_think_s = first_think_s(session.spec.workload, rng)
        self._draws: Iterator[Draw] = draws(session.spec.workload, rng)
        self._draw = next(self._draws)
        self._dialogue = Dialogue(session.texts)
        self._connection = Connection(session.address, pump_callback)
        self._seq = -1
        self._think_s = 0.0
        self._next_start = monotonic()

    def wait_time(self) -> float:
        """Return the seconds from now to the next intended start, for Locust."""
        return max(0.0, self._next_start - monotonic())

    @task
    def ask(self) -> None:
        """Make one request; the first call only begins the first think time, which Locust may interrupt."""
        if self._seq < 0:
            self._seq = 0
            self._pause(self._first_think_s, monotonic())
            return
        sample = self._request()
        self._seq += 1
        self._draw = next(self._draws)
        pause = self._draw.think_s
        if not sample.ok:
            pause = max(pause, _PAUSE_AFTER_FAILURE_S)
        self._pause(pause, sample.end_s)

    def on_stop(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _pause(self, think_s: float, since: float) -> None:
        self._think_s = think_s if self.session.think else 0.0
        self._next_start = since + self._think_s
        self.session.recorder.thinks(self._number, self._next_start)

    def _request(self) -> Sample:
        session, dialogue, draw = self.session, self._dialogue, self._draw
        intended = self._next_start
        if dialogue.over or self._seq == 0:
            dialogue.begin(int(session.spec.workload.turns.sample_counts(self._turns, 1)[0]))
        body = dialogue.body(draw, self._number, self._seq)
        request = session.address.request(session.texts.path, body)
        exchange = Exchange(NdjsonStream(keep=dialogue.needs_answer))
        session.recorder.began(self._number, Live(self._seq, intended, exchange, gevent.getcurrent()))
        sent = monotonic()
        try:
            self._connection.run(request, exchange, intended + session.spec.workload.timeout_s)
        except GreenletExit:
            exchange.fail(Failure.CANCELLED, monotonic(), "cut by our own stop")
            raise
        finally:
            sample = to_sample(
                exchange,
                user=self._number,
                seq=self._seq,
                turn=dialogue.turn,
                intended_s=intended,
                sent_s=sent,
                think_s=self._think_s,
                asked_prompt_tokens=draw.prompt_tokens,
                asked_tokens=draw.output_tokens,
            )
            session.recorder.ended(sample, exchange)
            if session.show is not None:
                session.show(sample)
        answer = exchange.stream.text() if sample.ok and dialogue.needs_answer else "" if sample.ok else None
        dialogue.answered(answer)
        return sample
