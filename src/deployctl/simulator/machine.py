"""The queue model as a machine that is told the time: FIFO slots, prefill and decode shared by all that hold one.

It has no clock and does no I/O, so a socket server can drive it in real time and a test by hand. Every request that
holds a slot (k of them) prefills at ``prefill_rate(k)`` and then decodes at ``decode_rate(k)``. All that decode go at
one rate, so one running total per phase ("tokens that each has been given so far") replaces k remaining amounts:
a request is due when the total reaches its own mark.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from deployctl.simulator.scenario import Server
from deployctl.simulator.speed import SpeedClock

_ROUNDING = 1e-9  # seconds of work: a due time taken to seconds and back may come out a hair later

Kind = Literal["started", "prefilled", "tokens", "finished"]


@dataclass(eq=False)
class Job:
    """One request. Token counts are fixed at arrival; times are seconds on the machine's clock (NaN: not yet)."""

    prompt_tokens: float  # still to be prefilled, without what a cache holds
    output_tokens: int
    arrived_s: float = math.nan
    started_s: float = math.nan
    prefilled_s: float = math.nan
    first_s: float = math.nan
    ended_s: float = math.nan
    sent: int = 0  # tokens that have been given out
    gone: bool = field(default=False, repr=False)


class Happening(NamedTuple):
    """Something that happened to ``job`` at ``at_s``: with kind ``tokens`` and ``finished``, ``tokens`` new ones.

    ``first`` is the index of the first of them: whoever looks late finds ``job.sent`` further on already.
    """

    kind: Kind
    job: Job
    at_s: float
    tokens: int = 0
    first: int = 0


class Machine:
    """The model of one server. Call ``advance`` first, then ``arrive`` or ``cancel`` at that same time.

    The first token is given out alone, later ones ``coalesce`` at a time; the last chunk holds what is left.
    ``on_start`` is called as a request gets its slot, and may still lower its ``prompt_tokens`` (a cached prefix);
    ``on_release`` as it gives the slot back, before the next one starts.
    """

    def __init__(
        self,
        server: Server,
        rng: np.random.Generator,
        on_start: Callable[[Job], None] | None = None,
        on_release: Callable[[Job], None] | None = None,
    ) -> None:
        self.server = server
        self.clock = SpeedClock(server, rng)
        self._prefill_rates = [math.nan, *(server.prefill_rate(k) for k in range(1, server.slots + 1))]
        self._decode_rates = [math.nan, *(server.decode_rate(k) for k in range(1, server.slots + 1))]
        self.active = 0
        self.waiting: deque[Job] = deque()
        self._on_start = on_start
        self._on_release = on_release
        self._now_s = 0.0
        self._work = 0.0
        self._prefilled = 0.0  # prompt tokens that a request would have got had it been in prefill since 0
        self._decoded = 0.0
        self._prefills: list[tuple[float, int, Job]] = []
        self._decodes: list[tuple[float, int, Job]] = []
        self._order = 0

    def advance(self, now_s: float) -> list[Happening]:
        """Let the time pass up to ``now_s``; return what happened, in order, with the times at which it was due."""
        happened: list[Happening] = []
        until = self.clock.to_work(now_s)
        while True:
            prefill, decode = self._prefill_due(), self._decode_due()
            due = min(prefill, decode)
            if due > until + _ROUNDING:
                break
            self._pass(due)
            self._now_s = min(self.clock.to_seconds(due), now_s)
            if prefill <= decode:
                job = heapq.heappop(self._prefills)[2]
                job.prefilled_s = self._now_s
                self._schedule(job)
                happened.append(Happening("prefilled", job, self._now_s))
            else:
                happened += self._give(heapq.heappop(self._decodes)[2])
        self._pass(until)
        self._now_s = now_s
        return happened

    def next_s(self) -> float:
        """The second at which something will happen by itself (infinity: never)."""
        work = min(self._prefill_due(), self._decode_due())
        return work if work == math.inf else max(self.clock.to_seconds(work), self._now_s)

    def arrive(self, job: Job) -> list[Happening] | None:
        """Take a request now; return what happened, or None when the queue is full (a 503)."""
        limit = self.server.queue_limit
        if self.active < self.server.slots:
            job.arrived_s = self._now_s
            return [self._start(job)]
        if limit is not None and len(self.waiting) >= limit:
            return None
        job.arrived_s = self._now_s
        self.waiting.append(job)
        return []

    def cancel(self, job: Job) -> list[Happening]:
        """Forget a request whose client has gone; its slot is free at once."""
        if job.gone:
            return []
        job.gone = True
        if math.isnan(job.started_s):
            self.waiting.remove(job)
            return []
        self._prefills = [entry for entry in self._prefills if entry[2] is not job]
        self._decodes = [entry for entry in self._decodes if entry[2] is not job]
        heapq.heapify(self._prefills)
        heapq.heapify(self._decodes)
        return self._release(job)

    def _give(self, job: Job) -> list[Happening]:
        tokens = self._next_tokens(job)
        if job.sent == 0:
            job.first_s = self._now_s
        first = job.sent
        job.sent += tokens
        if job.sent < job.output_tokens:
            self._schedule(job)
            return [Happening("tokens", job, self._now_s, tokens, first)]
        job.ended_s, job.gone = self._now_s, True
        return [Happening("finished", job, self._now_s, tokens, first), *self._release(job)]

    def _next_tokens(self, job: Job) -> int:
        return 1 if job.sent == 0 else min(self.server.coalesce, job.output_tokens - job.sent)

    def _schedule(self, job: Job) -> None:
        self._order += 1
        heapq.heappush(self._decodes, (self._decoded + self._next_tokens(job), self._order, job))

    def _start(self, job: Job) -> Happening:
        if self._on_start is not None:
            self._on_start(job)
        self.active += 1
        job.started_s = self._now_s
        self._order += 1
        heapq.heappush(self._prefills, (self._prefilled + job.prompt_tokens, self._order, job))
        return Happening("started", job, self._now_s)

    def _release(self, job: Job) -> list[Happening]:
        if self._on_release is not None:
            self._on_release(job)
        self.active -= 1
        return [self._start(self.waiting.popleft())] if self.waiting else []

    def _pass(self, work: float) -> None:
        passed = work - self._work
        if passed > 0:
            if self.active:
                self._prefilled += passed * self._prefill_rates[self.active]
                self._decoded += passed * self._decode_rates[self.active]
            self._work = work

    def _prefill_due(self) -> float:
        if not self._prefills:
            return math.inf
        return self._work + max(self._prefills[0][0] - self._prefilled, 0.0) / self._prefill_rates[self.active]

    def _decode_due(self) -> float:
        if not self._decodes:
            return math.inf
        return self._work + max(self._decodes[0][0] - self._decoded, 0.0) / self._decode_rates[self.active]
