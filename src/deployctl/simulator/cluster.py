"""Many equal hosts behind one balancer, in virtual time: the same model, one machine per host."""

from __future__ import annotations

import heapq
import math
from array import array
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.probe import Requests
from deployctl.simulator.inputs import Inputs
from deployctl.simulator.machine import Happening, Job, Machine
from deployctl.simulator.scenario import Scenario

Balancing = Literal["round-robin", "least-connections"]
Floats = NDArray[np.float64]
_ROUNDS = 16  # requests of each user that are drawn at once


@dataclass(eq=False, slots=True)
class _Visit(Job):
    """A job that knows who sent it and where it went."""

    request: int = 0
    host: int = 0


class Cluster:
    """``users`` users on ``hosts`` equal hosts; the face of ``virtual.ClosedLoop``, for as many hosts as one likes.

    ``round-robin`` sends every request to the next host in turn; ``least-connections`` to one with the fewest open
    requests, of equal ones to the one that was chosen longest ago. Deterministic by ``seed``.
    """

    began_s = 0.0

    def __init__(
        self,
        scenario: Scenario,
        users: int,
        seed: np.random.SeedSequence,
        hosts: int = 1,
        balancing: Balancing = "round-robin",
    ) -> None:
        inputs_seed, *clock_seeds = seed.spawn(hosts + 1)
        # Nobody looks at single tokens here: the first one, then the whole rest.
        server = scenario.server.model_copy(update={"coalesce": 1 << 40})
        self.users = users
        self.now_s = 0.0
        self._uncached = 1 - scenario.workload.shared_prefix
        self._inputs = Inputs(scenario.workload, users, inputs_seed)
        self._machines = [Machine(server, np.random.default_rng(clock_seed)) for clock_seed in clock_seeds]
        self._due = [math.inf] * hosts
        self._events: list[tuple[float, int]] = []  # (when, host); stale unless it is the host's due time
        self._open = [0] * hosts
        self._chosen = [0] * hosts
        self._choices = [(0, 0, host) for host in range(hosts)] if balancing == "least-connections" else None
        self._turn = 0
        self._think: list[float] = []
        self._prompt = array("q")
        self._output = array("q")
        self._times = {name: array("d") for name in ("start", "slot", "first", "end")}
        self._order = array("q")
        self._grow()
        self._thinking = [(self._think[user], user) for user in range(users)]
        heapq.heapify(self._thinking)

    @property
    def sent(self) -> int:
        """The number of requests that have been sent so far."""
        return len(self._order)

    def advance(self, until_s: float) -> None:
        """Play up to ``until_s``."""
        thinking, events, due = self._thinking, self._events, self._due
        while True:
            arrival = thinking[0][0] if thinking else math.inf
            while events and due[events[0][1]] != events[0][0]:
                heapq.heappop(events)
            event = events[0][0] if events else math.inf
            if min(arrival, event) > until_s:
                break
            if arrival < event:
                self._arrive(*heapq.heappop(thinking))
            else:
                host = heapq.heappop(events)[1]
                self._tell(self._machines[host].advance(event))
                self._arm(host)
        self.now_s = until_s

    def requests(self) -> Requests:
        """Return the requests that have ended, in order of their start."""
        ended = self._ended()
        start, first, end = (self._table(name)[ended] for name in ("start", "first", "end"))
        output = np.array(self._output, dtype=np.int64)[ended]
        ok = ~np.isnan(first)
        tpot = np.where(ok, 0.0, math.inf)
        many = ok & (output > 1)
        tpot[many] = (end[many] - first[many]) / (output[many] - 1)
        return Requests(
            user=ended % self.users,
            start_s=start,
            ttft_s=np.where(ok, first - start, math.inf),
            tpot_s=tpot,
            e2e_s=np.where(ok, end - start, math.inf),
            ok=ok,
            prompt_tokens=np.array(self._prompt, dtype=np.int64)[ended],
            output_tokens=output,
        )

    def waits_s(self) -> Floats:
        """Return the wait for a slot of each request that has ended, parallel to ``requests()``; NaN if refused."""
        ended = self._ended()
        waits: Floats = self._table("slot")[ended] - self._table("start")[ended]
        return waits

    def pending(self) -> tuple[Floats, Floats]:
        """Return start and TTFT (NaN: no token yet) of the requests that are open, in order of their start."""
        order = np.array(self._order, dtype=np.int64)
        still = order[np.isnan(self._table("end")[order])]
        start = self._table("start")[still]
        return start, self._table("first")[still] - start

    def _table(self, name: str) -> Floats:
        return np.array(self._times[name])

    def _ended(self) -> NDArray[np.int64]:
        order = np.array(self._order, dtype=np.int64)
        return order[~np.isnan(self._table("end")[order])]

    def _grow(self) -> None:
        block = self._inputs.draw(_ROUNDS)
        self._think += block.think_s.tolist()
        self._prompt.frombytes(block.prompt_tokens.tobytes())
        self._output.frombytes(block.output_tokens.tobytes())
        blank = np.full(len(block.think_s), np.nan).tobytes()
        for table in self._times.values():
            table.frombytes(blank)

    def _choose(self) -> int:
        self._turn += 1
        if self._choices is None:
            return (self._turn - 1) % len(self._machines)
        while True:
            count, chosen, host = heapq.heappop(self._choices)
            if count == self._open[host] and chosen == self._chosen[host]:
                self._chosen[host] = self._turn
                return host

    def _count(self, host: int, change: int) -> None:
        self._open[host] += change
        if self._choices is not None:
            heapq.heappush(self._choices, (self._open[host], self._chosen[host], host))

    def _arrive(self, now_s: float, request: int) -> None:
        host = self._choose()
        machine = self._machines[host]
        visit = _Visit(self._prompt[request] * self._uncached, self._output[request], request=request, host=host)
        self._order.append(request)
        self._times["start"][request] = now_s
        self._tell(machine.advance(now_s))
        self._count(host, 1)
        happened = machine.arrive(visit)
        if happened is None:
            self._times["end"][request] = now_s
            self._count(host, -1)
            self._think_on(request, now_s)
        else:
            self._tell(happened)
        self._arm(host)

    def _tell(self, happened: list[Happening]) -> None:
        for event in happened:
            if event.kind == "finished":
                visit = event.job
                assert isinstance(visit, _Visit)
                times, request = self._times, visit.request
                times["slot"][request] = visit.started_s
                times["first"][request] = visit.first_s
                times["end"][request] = visit.ended_s
                self._count(visit.host, -1)
                self._think_on(request, visit.ended_s)

    def _think_on(self, request: int, now_s: float) -> None:
        request += self.users
        if request >= len(self._think):
            self._grow()
        heapq.heappush(self._thinking, (now_s + self._think[request], request))

    def _arm(self, host: int) -> None:
        due = self._machines[host].next_s()
        if due != self._due[host]:
            self._due[host] = due
            if due < math.inf:
                heapq.heappush(self._events, (due, host))
