"""A server whose capacity is known in closed form: the machine-repairman queue M/M/c//N, played in virtual time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from deployctl.capacity.probe import Look, ProbeRun, Requests


@dataclass
class Repairman:
    """A Prober: exponential think and service, FIFO slots; a request's TTFT is its wait for a slot.

    ``fail_share`` of the requests fail when they finish; ``invalid`` is said of the first ``invalid_probes`` probes.
    """

    slots: int = 2
    service_s: float = 1.0
    think_s: float = 5.0
    seed: int = 1
    fail_share: float = 0.0
    invalid_probes: int = 0
    constant: bool = False
    levels: list | None = None

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.levels = []
        self.spent = 0.0

    def attainment(self, users: int, wait_s: float) -> float:
        """P(wait <= wait_s): an arrival sees the queue of users - 1 in balance (Sevcik & Mitrani 1981)."""
        weights = [1.0]
        for k in range(1, users):
            rate_in = (users - 1 - k + 1) / self.think_s
            weights.append(weights[-1] * rate_in / (min(k, self.slots) / self.service_s))
        total = sum(weights)
        served = self.slots / self.service_s
        met = 0.0
        for k, weight in enumerate(weights):
            ahead = k - self.slots + 1  # departures to wait for: Erlang(ahead, served)
            late = sum(math.exp(-served * wait_s) * (served * wait_s) ** i / math.factorial(i) for i in range(ahead))
            met += weight / total * (1.0 - late if ahead > 0 else 1.0)
        return met * (1.0 - self.fail_share)

    def capacity(self, slo) -> int:
        users = 0
        while self.attainment(users + 1, slo.ttft_s) >= slo.attainment:
            users += 1
        return users

    def _draw(self, mean: float) -> float:
        return mean if self.constant else float(self.rng.exponential(mean))

    def __call__(self, users, go_on, max_seconds):
        self.levels.append(users)
        invalid = ("host: CPU steal",) if len(self.levels) <= self.invalid_probes else ()
        events = [(self._draw(self.think_s), 0, user) for user in range(users)]
        heapq.heapify(events)
        waiting: deque = deque()
        busy, done, started, open_starts = 0, [], {}, {}
        next_look, running, now = 1.0, True, 0.0
        while events or waiting:
            now, kind, user = heapq.heappop(events)
            while running and now > next_look:
                running = next_look <= max_seconds and go_on(
                    self._look(users, next_look, done, open_starts, started, invalid)
                )
                next_look = max(next_look + 1.0, next_look * 1.03)
            if kind == 0:
                if not running:
                    continue
                open_starts[user] = now
                waiting.append(user)
            else:
                busy -= 1
                begin = open_starts.pop(user)
                failed = self.rng.random() < self.fail_share
                done.append((user, begin, started.pop(user) - begin, now - begin, not failed))
                heapq.heappush(events, (now + self._draw(self.think_s), 0, user))
            while waiting and busy < self.slots:
                user = waiting.popleft()
                busy += 1
                started[user] = now
                heapq.heappush(events, (now + self._draw(self.service_s), 1, user))
            if not running and not open_starts:
                break
        self.spent += now
        return ProbeRun(users, now, self._look(users, now, done, open_starts, started, invalid), invalid)

    def _look(self, users, now, done, open_starts, started, invalid):
        table = np.array(sorted(done, key=lambda row: row[1]), dtype=float).reshape(-1, 5)
        ok = table[:, 4] > 0
        never = np.where(ok, 0.0, np.inf)
        requests = Requests(
            table[:, 0].astype(np.int64),
            table[:, 1],
            table[:, 2] + never,
            never,
            table[:, 3] + never,
            ok,
            np.ones(len(table), dtype=np.int64),
            np.ones(len(table), dtype=np.int64),
        )
        pending = sorted(open_starts, key=open_starts.get)
        first = np.array([started[user] - open_starts[user] if user in started else np.nan for user in pending])
        return Look(users, now, requests, np.array([open_starts[user] for user in pending]), invalid, first)


@pytest.fixture
def repairman():
    return Repairman


def table(starts, ttft, e2e=None, ok=None, tpot=None, tokens=None):
    """Requests from plain lists; a failed one has infinite latencies."""
    count = len(starts)
    ok = np.ones(count, dtype=bool) if ok is None else np.array(ok, dtype=bool)
    never = np.where(ok, 0.0, np.inf)
    ttft = np.array(ttft, dtype=float)
    return Requests(
        np.arange(count, dtype=np.int64),
        np.array(starts, dtype=float),
        ttft + never,
        (np.zeros(count) if tpot is None else np.array(tpot, dtype=float)) + never,
        (ttft if e2e is None else np.array(e2e, dtype=float)) + never,
        ok,
        np.ones(count, dtype=np.int64),
        np.ones(count, dtype=np.int64) if tokens is None else np.array(tokens, dtype=np.int64),
    )


@pytest.fixture(name="table")
def table_fixture():
    return table
