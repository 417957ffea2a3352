"""One closed loop in virtual time, event by event: the face of the model that a search probes.

The loop is written for the speed of plain Python: one flat table per quantity, everything in local variables, and
one running total per phase (see ``machine``), so that a change of the batch touches no request. Where a compiler is
installed, ``compiled`` takes the same steps on the same tables.
"""

from __future__ import annotations

import heapq
import math
import os
from abc import ABC, abstractmethod
from array import array
from collections import deque
from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.probe import Requests
from deployctl.simulator.inputs import Block, Inputs, Source
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.speed import SpeedClock

_INFINITY = math.inf
Floats = NDArray[np.float64]
_ROUNDS, _DRAWN = 16, 2048  # requests of each user by which the tables grow, and of all users, at least


def closed_loop(
    scenario: Scenario,
    users: int,
    seed: np.random.SeedSequence,
    clock: SpeedClock | None = None,
    began_s: float = 0.0,
    inputs: Source | None = None,
    *,
    compiled: bool | None = None,
) -> ClosedLoop:
    """Return ``users`` users on one server, from ``began_s`` of its clock on. Deterministic by ``seed``.

    ``compiled``: whether to play compiled code (default: where it can be had, unless DEPLOYCTL_PLAIN_PYTHON is set).
    """
    if _can_compile() if compiled is None else compiled:
        from deployctl.simulator.compiled import CompiledLoop

        return CompiledLoop(scenario, users, seed, clock, began_s, inputs)
    return PlainLoop(scenario, users, seed, clock, began_s, inputs)


@cache
def _can_compile() -> bool:
    return find_spec("numba") is not None and not os.environ.get("DEPLOYCTL_PLAIN_PYTHON")


class ClosedLoop(ABC):
    """A closed loop: call ``advance``, then read. The times that it shows are seconds since ``began_s``."""

    def __init__(
        self,
        scenario: Scenario,
        users: int,
        seed: np.random.SeedSequence,
        clock: SpeedClock | None = None,
        began_s: float = 0.0,
        inputs: Source | None = None,
    ) -> None:
        inputs_seed, clock_seed = seed.spawn(2)
        server = scenario.server
        self.users = users
        self.clock = clock or SpeedClock(server, np.random.default_rng(clock_seed))
        self.began_s = began_s
        self.now_s = began_s
        self._uncached = 1 - scenario.workload.shared_prefix
        self._slots = server.slots
        self._queue_limit = _INFINITY if server.queue_limit is None else server.queue_limit
        self._prefill_rates = [0.0, *(server.prefill_rate(k) for k in range(1, server.slots + 1))]
        self._decode_rates = [0.0, *(server.decode_rate(k) for k in range(1, server.slots + 1))]
        self._inputs = inputs or Inputs(scenario.workload, users, inputs_seed)
        # Tables by flat index of the request; times in seconds, but slot_work and first_work in work.
        self._think = array("d")
        self._prompt = array("d")  # without what the cache holds
        self._prompt_tokens = array("q")
        self._output_tokens = array("q")
        self._start_s = array("d")
        self._slot_work = array("d")
        self._first_work = array("d")
        self._end_s = array("d")
        self._empty()
        self._grow()
        for user in range(users):
            self._start_s[user] = began_s + self._think[user]
        self._begin()

    @abstractmethod
    def _empty(self) -> None:
        """Make what :meth:`_grow` fills."""

    @abstractmethod
    def _begin(self) -> None:
        """Put the server in its first state: nobody there, the first think times running."""

    def _grow(self) -> Block:
        block = self._inputs.draw(max(_ROUNDS, _DRAWN // self.users))
        self._think.frombytes(block.think_s.tobytes())
        self._prompt.frombytes((block.prompt_tokens * self._uncached).tobytes())
        self._prompt_tokens.frombytes(block.prompt_tokens.tobytes())
        self._output_tokens.frombytes(block.output_tokens.tobytes())
        blank = np.full(len(block.think_s), np.nan).tobytes()
        for table in (self._start_s, self._slot_work, self._first_work, self._end_s):
            table.frombytes(blank)
        return block

    def advance(self, until_s: float) -> None:
        """Play up to ``until_s`` since the beginning."""
        self.now_s = self.began_s + until_s
        self._play(self.clock.to_work(self.now_s), think_on=True)

    def drain(self) -> float:
        """Let nobody come back, finish what is open, and return the second since the beginning when all was idle."""
        self._play(_INFINITY, think_on=False)
        self.now_s = max(self.now_s, self.clock.to_seconds(self._work))
        return self.now_s - self.began_s

    def requests(self) -> Requests:
        """Return the requests that have ended, in order of their start."""
        ended = self._ended()
        start, end = np.frombuffer(self._start_s)[ended], np.frombuffer(self._end_s)[ended]
        first = self.clock.to_seconds_array(np.frombuffer(self._first_work)[ended])
        output = np.frombuffer(self._output_tokens, dtype=np.int64)[ended]
        ok = ~np.isnan(first)
        tpot = np.where(ok, 0.0, _INFINITY)
        many = ok & (output > 1)
        tpot[many] = (end[many] - first[many]) / (output[many] - 1)
        return Requests(
            user=ended % self.users,
            start_s=start - self.began_s,
            ttft_s=np.where(ok, first - start, _INFINITY),
            tpot_s=tpot,
            e2e_s=np.where(ok, end - start, _INFINITY),
            ok=ok,
            prompt_tokens=np.frombuffer(self._prompt_tokens, dtype=np.int64)[ended],
            output_tokens=output,
        )

    def waits_s(self) -> Floats:
        """Return the wait for a slot of each request that has ended, parallel to ``requests()``; NaN if refused."""
        ended = self._ended()
        return self.clock.to_seconds_array(np.frombuffer(self._slot_work)[ended]) - np.frombuffer(self._start_s)[ended]

    @property
    @abstractmethod
    def sent(self) -> int:
        """The number of requests that have been sent so far."""

    def pending(self) -> tuple[Floats, Floats]:
        """Return start and TTFT (NaN: no token yet) of the requests that are open, in order of their start."""
        still = self._still_open()
        start = np.frombuffer(self._start_s)[still]
        first = self.clock.to_seconds_array(np.frombuffer(self._first_work)[still])
        return start - self.began_s, first - start

    def pending_users(self) -> NDArray[np.int64]:
        """Return whose the open requests are, parallel to ``pending()``."""
        return self._still_open() % self.users

    def _still_open(self) -> NDArray[np.int64]:
        order = self._arrived()
        return order[np.isnan(np.frombuffer(self._end_s)[order])]

    def _ended(self) -> NDArray[np.int64]:
        order = self._arrived()
        return order[~np.isnan(np.frombuffer(self._end_s)[order])]

    @property
    @abstractmethod
    def _work(self) -> float:
        """The server's clock now, in work."""

    @abstractmethod
    def _arrived(self) -> NDArray[np.int64]:
        """A copy of the requests that have been sent, in order of arrival."""

    @abstractmethod
    def _play(self, until: float, *, think_on: bool) -> None:
        """Play up to ``until`` (work); without ``think_on`` nobody sends another request, not even a first one."""


class PlainLoop(ClosedLoop):
    """The loop in plain Python."""

    def _empty(self) -> None:
        self._thinks: list[float] = []  # the same as the tables, as lists: quicker to read
        self._prompts: list[float] = []
        self._outputs: list[int] = []
        self._order = array("q")

    def _begin(self) -> None:
        # The state of the server, in work.
        self._thinking = [(self.clock.to_work(self._start_s[user]), user) for user in range(self.users)]
        heapq.heapify(self._thinking)
        self._queue: deque[int] = deque()
        self._prefills: list[tuple[float, int]] = []  # (total at which it is due, request)
        self._decodes: list[tuple[float, int]] = []
        self._firsts: deque[tuple[float, int]] = deque()
        self._active = 0
        self._now = self.clock.to_work(self.began_s)
        self._prefilled = 0.0
        self._decoded = 0.0

    @property
    def sent(self) -> int:
        """The number of requests that have been sent so far."""
        return len(self._order)

    @property
    def _work(self) -> float:
        return self._now

    def _arrived(self) -> NDArray[np.int64]:
        return np.array(self._order, dtype=np.int64)

    def _grow(self) -> Block:
        block = super()._grow()
        self._thinks += block.think_s.tolist()
        self._prompts += (block.prompt_tokens * self._uncached).tolist()
        self._outputs += block.output_tokens.tolist()
        return block

    def _play(self, until: float, *, think_on: bool) -> None:
        if not think_on:
            self._thinking.clear()
        clock = self.clock
        constant = clock.constant
        to_seconds, to_work = clock.to_seconds, clock.to_work
        users, slots, limit = self.users, self._slots, self._queue_limit
        prefill_rates, decode_rates = self._prefill_rates, self._decode_rates
        thinking, queue, firsts = self._thinking, self._queue, self._firsts
        prefills, decodes = self._prefills, self._decodes
        prompt, output, think = self._prompts, self._outputs, self._thinks
        start_s, slot_work, first_work, end_s = self._start_s, self._slot_work, self._first_work, self._end_s
        push, pop, order = heapq.heappush, heapq.heappop, self._order.append
        active, now, prefilled, decoded = self._active, self._now, self._prefilled, self._decoded
        prefill_rate, decode_rate = prefill_rates[active], decode_rates[active]

        while True:
            # What is next: the end of a prefill, the end of an answer, an arrival, or the end of this call?
            due_prefill = now + (prefills[0][0] - prefilled) / prefill_rate if prefills else _INFINITY
            due_decode = now + (decodes[0][0] - decoded) / decode_rate if decodes else _INFINITY
            due = due_prefill if due_prefill <= due_decode else due_decode  # noqa: FURB136 (half of min()'s time)
            arrives = thinking and thinking[0][0] < due
            if arrives:
                due = thinking[0][0]
            stops = due > until or due == _INFINITY
            if stops:
                due = until if until < _INFINITY else now
            passed, before = due - now, decoded
            if stops or arrives:
                prefilled += passed * prefill_rate
                decoded += passed * decode_rate
            elif due_prefill <= due_decode:
                prefilled = prefills[0][0]
                decoded += passed * decode_rate
            else:
                prefilled += passed * prefill_rate
                decoded = decodes[0][0]
            while firsts and firsts[0][0] <= decoded:
                mark, request = firsts.popleft()
                first_work[request] = now + (mark - before) / decode_rate
            now = due
            if stops:
                break
            if arrives:
                request = pop(thinking)[1]
                order(request)
                if active < slots:
                    active += 1
                    prefill_rate, decode_rate = prefill_rates[active], decode_rates[active]
                    slot_work[request] = now
                    push(prefills, (prefilled + prompt[request], request))
                    continue
                if len(queue) < limit:
                    queue.append(request)
                    continue
                end_s[request] = ended = start_s[request]
            elif due_prefill <= due_decode:
                request = pop(prefills)[1]
                push(decodes, (decoded + output[request], request))
                firsts.append((decoded + 1.0, request))
                continue
            else:
                request = pop(decodes)[1]
                end_s[request] = ended = now if constant else to_seconds(now)
                if queue:
                    waiter = queue.popleft()
                    slot_work[waiter] = now
                    push(prefills, (prefilled + prompt[waiter], waiter))
                else:
                    active -= 1
                    prefill_rate, decode_rate = prefill_rates[active], decode_rates[active]
            if think_on:
                request += users
                if request >= len(think):
                    self._grow()
                start_s[request] = arrival = ended + think[request]
                push(thinking, (arrival if constant else to_work(arrival), request))

        self._active, self._now, self._prefilled, self._decoded = active, now, prefilled, decoded
