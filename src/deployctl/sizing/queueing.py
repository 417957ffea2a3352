"""Predicts how many users a deployment holds: a closed queue of thinking users before a few slots.

Users think for an exponential time, then wait for one of c slots (FIFO); a slot's time is a prefill and a decode, and
both slow down as more slots are busy: a prompt that is read stops the others' decoding. That is the machine-repair
model with a load-dependent rate (Lavenberg, Computer Performance Modeling Handbook, 1983): a birth-death chain, solved
exactly. Service is taken as exponential.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deployctl.catalog.slos import SloEntry
from deployctl.catalog.workloads import Workload

MOST_USERS = 4096
QUANTILES = tuple((2 * i + 1) / 18 for i in range(9))
SHORTEST_THOUGHT = 1e-3
NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Service:
    """What a deployment does: slots, prompt tokens per second, and seconds per decode step of ``b`` busy slots.

    ``sharing`` says how prompts are read while other slots are busy: None as llama.cpp does it (one batch takes the
    next tokens of every slot, so a prompt waits for other prompts only), 1.0 at an equal share of the machine.
    """

    slots: int
    prefill_tok_s: float
    step_s: Callable[[int], float]
    sharing: float | None = None

    def slowed(self, factor: float, *, sharing: float | None = None) -> Service:
        """Return the same service, slower by ``factor``."""
        return Service(self.slots, self.prefill_tok_s / factor, lambda busy: self.step_s(busy) * factor, sharing)


@dataclass(frozen=True)
class Load:
    """The prediction for a number of users: share of requests that meet the SLO, and answers per second."""

    attainment: float
    requests_per_s: float


def service_s(service: Service, workload: Workload, busy: int) -> float:
    """Return the mean seconds that a request holds its slot while ``busy`` slots are busy.

    A prefill stops the others' decoding (one batch is computed at a time), so each request also sees the prefills of
    the other busy slots, once each.
    """
    prefill = workload.prompt_tokens.expected() / service.prefill_tok_s
    return busy * prefill + workload.output_tokens.expected() * service.step_s(busy)


def load(service: Service, workload: Workload, slo: SloEntry, users: int) -> Load:
    """Return what ``users`` users see."""
    return _Queue.of(service, workload, slo).load(users)


def most_users(service: Service, workload: Workload, slo: SloEntry) -> int:
    """Return the largest number of users whose attainment reaches the SLO's; 0 when not even one does."""
    queue = _Queue.of(service, workload, slo)

    def good(users: int) -> bool:
        return queue.attainment(users) >= slo.attainment

    if not good(1):
        return 0
    low, high = 1, 2
    while high <= MOST_USERS and good(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return min(low, MOST_USERS)


@dataclass(frozen=True)
class _Queue:
    """What does not depend on the number of users: rates, and how long each kind of request may wait at each crowd.

    ``rates[k]`` are answers per second with k + 1 slots busy; ``judged[k]`` has, for each quantile of the lengths, the
    seconds that such a request may wait and its chance to get its tokens fast enough.
    """

    think: float
    rates: tuple[float, ...]
    judged: tuple[tuple[tuple[float, float], ...], ...]

    @classmethod
    def of(cls, service: Service, workload: Workload, slo: SloEntry) -> _Queue:
        lengths = [(workload.prompt_tokens.quantile(q), workload.output_tokens.quantile(q)) for q in QUANTILES]
        crowds = [_Crowd.of(service, workload, busy) for busy in range(1, service.slots + 1)]
        return cls(
            think=max(workload.think_s.expected(), SHORTEST_THOUGHT),
            rates=tuple(busy / service_s(service, workload, busy) for busy in range(1, service.slots + 1)),
            judged=tuple(
                tuple(crowd.judge(workload, slo, prompt, answer) for prompt, answer in lengths) for crowd in crowds
            ),
        )

    def load(self, users: int) -> Load:
        throughput = math.fsum(
            share * self._rate(present) for present, share in enumerate(self._stationary(users)) if present
        )
        return Load(self.attainment(users), throughput)

    def attainment(self, users: int) -> float:
        # An arriving request sees the system as if its user did not exist (arrival theorem).
        seen = self._stationary(users - 1)
        return math.fsum(share * chance for share, chance in zip(seen, self._meeting(users), strict=True))

    def _rate(self, present: int) -> float:
        return self.rates[min(present, len(self.rates)) - 1]

    def _stationary(self, users: int) -> Sequence[float]:
        """Return the probability of 0, 1, … ``users`` requests in the system; in logarithms: nothing overflows."""
        logs = [0.0]
        for present in range(1, users + 1):
            logs.append(logs[-1] + math.log((users - present + 1) / self.think / self._rate(present)))
        top = max(logs)
        weights = [math.exp(value - top) for value in logs]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    def _meeting(self, users: int) -> list[float]:
        """Return the probability that a request which finds 0, 1, … ``users - 1`` others meets every threshold."""
        slots = len(self.rates)
        idle = min(users, slots)
        met = [math.fsum(chance * (patience >= 0) for patience, chance in self.judged[k]) for k in range(idle)]
        met += [0.0] * (users - idle)
        if users > idle:
            # Who finds every slot busy waits for one departure, two, …: Erlang times at the full rate.
            for patience, chance in self.judged[-1]:
                for ahead, in_time in enumerate(_erlang(users - idle, self.rates[-1], patience)):
                    met[idle + ahead] += chance * in_time
        return [chance / len(QUANTILES) for chance in met]


@dataclass(frozen=True)
class _Crowd:
    """What a request meets while ``busy`` slots are busy, its own among them; times in seconds."""

    busy: int
    per_prompt_token: float
    step: float
    prefill: float  # of a mean prompt, alone
    arrivals: float  # of other requests in busy slots, per second

    @classmethod
    def of(cls, service: Service, workload: Workload, busy: int) -> _Crowd:
        held = service_s(service, workload, busy)
        prefill = workload.prompt_tokens.expected() / service.prefill_tok_s
        # Another slot is reading its prompt for this share of the time.
        share = min(1.0, busy * prefill / held) if service.sharing is None else service.sharing
        slowing = 1 + (busy - 1) * share
        return cls(busy, slowing / service.prefill_tok_s, service.step_s(busy), prefill, (busy - 1) / held)

    def judge(self, workload: Workload, slo: SloEntry, prompt: float, answer: float) -> tuple[float, float]:
        """Return how long such a request may wait for a slot, and its chance to get its tokens fast enough.

        The first token ends the step that ends the prompt, and on average half a step was running before. Each prompt
        of another slot holds up every answer once: how many do is a Poisson number.
        """
        start = prompt * self.per_prompt_token + 1.5 * self.step
        hits = self.arrivals * answer * self.step
        decode = answer * self.step + hits * self.prefill
        limits = [workload.timeout_s - start - decode]
        limits += [] if slo.ttft_s is None else [slo.ttft_s - start]
        limits += [] if slo.e2e_s is None else [slo.e2e_s - start - decode]
        if slo.tpot_s is None:
            return min(limits), 1.0
        if self.step > slo.tpot_s:
            return min(limits), 0.0
        bearable = (slo.tpot_s - self.step) * max(1.0, answer - 1) / self.prefill if self.prefill > 0 else math.inf
        return min(limits), _poisson_at_most(bearable, hits)


def _poisson_at_most(count: float, mean: float) -> float:
    """Return P(N <= count) for a Poisson number of ``mean``."""
    if mean <= 0 or count > mean + 12 * math.sqrt(mean) + 12:
        return 1.0
    terms = (math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(math.floor(count) + 1))
    return min(1.0, math.fsum(terms))


def _erlang(most: int, rate: float, limit: float) -> list[float]:
    """Return P(sum of n exponential times of ``rate`` <= ``limit``) for n = 1 … ``most``, as far as it is not 0.

    A Poisson tail: 1 - P(N < n) for N of the mean rate × limit.
    """
    if limit <= 0:
        return []
    mean = rate * limit
    chances: list[float] = []
    tail, logarithm = 1.0, -mean
    for count in range(most):
        tail -= math.exp(logarithm)
        if tail < NEGLIGIBLE:
            break
        chances.append(tail)
        logarithm += math.log(mean / (count + 1))
    return chances
