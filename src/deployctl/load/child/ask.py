"""One request from a greenlet: what closed-loop users and open-loop arrivals have in common."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from time import monotonic

import gevent
from gevent import GreenletExit

from deployctl.load.api import api_of
from deployctl.load.arrivals import read_log
from deployctl.load.child.pump import pump_callback
from deployctl.load.child.recorder import Live, Recorder
from deployctl.load.connection import Address, Connection
from deployctl.load.dialogue import Dialogue, Texts
from deployctl.load.exchange import Exchange
from deployctl.load.outcome import to_sample
from deployctl.load.samples import Failure, Sample
from deployctl.load.script import Draw
from deployctl.load.spec import LoadSpec


class Session:
    """What all users of this process share; ``part`` of ``parts`` numbers this process's users apart from others'."""

    def __init__(self, spec: LoadSpec, recorder: Recorder, part: int = 0, parts: int = 1) -> None:
        self.spec = spec
        self.api = api_of(spec)
        self.recorder = recorder
        self.texts = Texts(spec)
        self.log = read_log(spec.replay) if spec.replay else ()
        self.address = Address.parse(spec.url)
        self.numbers = count(spec.first_user + part, parts)
        self.think = True
        self.show: Callable[[Sample], None] | None = None  # by hand: Locust's own statistics

    def connect(self) -> Connection:
        """Return a connection that yields to other users while it waits."""
        return Connection(self.address, pump_callback)

    def ask(
        self,
        connection: Connection,
        dialogue: Dialogue,
        draw: Draw,
        *,
        user: int,
        seq: int,
        intended_s: float,
        think_s: float = 0.0,
        text: str | None = None,
    ) -> Sample:
        """Make the dialogue's next request and record it, whatever becomes of it. Raises GreenletExit when cut."""
        request = self.address.request(self.api.path, dialogue.body(draw, user, seq, text), self.api.accept)
        exchange = Exchange(self.api.stream(keep=dialogue.needs_answer))
        turn, words = dialogue.turn, dialogue.words
        self.recorder.began(user, Live(seq, intended_s, exchange, gevent.getcurrent()))
        sent = monotonic()
        try:
            connection.run(request, exchange, intended_s + self.spec.workload.timeout_s)
        except GreenletExit:
            exchange.fail(Failure.CANCELLED, monotonic(), "cut by our own stop")
            raise
        finally:
            sample = to_sample(
                exchange,
                prompt_words=words,
                user=user,
                seq=seq,
                turn=turn,
                intended_s=intended_s,
                sent_s=sent,
                think_s=think_s,
                asked_prompt_tokens=draw.prompt_tokens,
                asked_tokens=draw.output_tokens,
            )
            self.recorder.ended(sample, exchange)
            if self.show is not None:
                self.show(sample)
        answer = exchange.stream.text() if sample.ok and dialogue.needs_answer else "" if sample.ok else None
        dialogue.answered(answer)
        return sample
