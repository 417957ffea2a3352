"""A queue model of the host, fitted to what the client has seen: it says where to look, and proves nothing.

The model is the simulator's: FIFO slots, prefill and decode shared by the k requests that hold one. All its parameters
follow from the samples: who holds a slot when (first come, first served), the rate of each batch size by least squares
over the time that each answer spent at it, the prefill rate from the first tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from deployctl.capacity.attainment import met
from deployctl.capacity.occupancy import busiest, served
from deployctl.capacity.probe import Floats, Look, Slo
from deployctl.stats.batches import batch_means

if TYPE_CHECKING:
    from deployctl.catalog.distributions import Dist
    from deployctl.simulator.scenario import Scenario

_LEAST_REQUESTS = 12
_STALLED = 3.0
_NUDGE = 0.1  # of the speed


@dataclass(frozen=True)
class Demand:
    """What the users ask for: laws of prompt tokens, output tokens and think time in seconds."""

    prompt_tokens: Dist
    output_tokens: Dist
    think_s: Dist


@dataclass(frozen=True)
class Twin:
    """The fitted server. ``decode[k-1]``: tokens/s of the whole batch of k; ``prefill``: prompt tokens/s.

    ``seen_s[k-1]``: seconds that answers spent in a batch of k, all added up: how far each rate can be trusted.
    """

    slots: int
    prefill: float
    decode: tuple[float, ...]
    queue_limit: int | None
    seen_s: tuple[float, ...] = field(default=(), compare=False)

    def at_speed(self, factor: float) -> Twin:
        """Return the same server, so many times as fast."""
        return replace(self, prefill=factor * self.prefill, decode=tuple(factor * rate for rate in self.decode))


@dataclass(frozen=True)
class Forecast:
    """The twin's capacity, how steeply its odds of a miss grow with the users there, and the levels behind it."""

    users: float
    steepness: float
    levels: dict[int, float]
    inflations: dict[int, float]

    def inflation(self, users: int) -> float | None:
        """Variance inflation of the twin's own misses, at the played level nearest to ``users``; None without any."""
        if not self.inflations:
            return None
        return self.inflations[min(self.inflations, key=lambda level: abs(math.log(level / users)))]


def fit(looks: tuple[Look, ...], slots: int | None) -> Twin | None:
    """Fit the server to the probes' last looks; None where there is too little to fit."""
    usable = [look for look in looks if int(look.requests.ok.sum()) >= 3]
    if sum(int(look.requests.ok.sum()) for look in usable) < _LEAST_REQUESTS:
        return None
    count = slots or max(busiest(look) for look in usable)
    found = [each for look in usable if (each := served(look, count)) is not None]
    table = np.concatenate([each.decode_s for each in found])
    tokens = np.concatenate([each.tokens for each in found])
    many = tokens > 0
    sizes = np.arange(1, count + 1)
    shared_s = math.fsum(float((each.prefill_s / sizes).sum()) for each in found)
    if int(many.sum()) < _LEAST_REQUESTS or shared_s <= 0:
        return None
    rates = _rates(table[many], tokens[many])
    # Answers caught in a stall of the host say nothing of its rates: left out where they took many times their due.
    usual = table[many] @ rates < _STALLED * tokens[many]
    if usual.sum() >= _LEAST_REQUESTS:
        rates = _rates(table[many][usual], tokens[many][usual])
    failed = any(not look.requests.ok.all() for look in usable)
    return Twin(
        slots=count,
        prefill=max(math.fsum(float(each.prompts.sum()) for each in found) / shared_s, 1e-3),
        decode=tuple(float(k * rate) for k, rate in enumerate(rates, start=1)),
        queue_limit=max(each.most_waiting for each in found) if failed else None,
        seen_s=tuple(float(x) for x in table.sum(axis=0)),
    )


def _rates(table: Floats, tokens: Floats) -> Floats:
    """Tokens/s of one request at each batch size: least squares, drawn to "a token takes a + b (k - 1)" where unseen.

    The straight line is how a memory-bound decoder slows down: weights are read once per step, caches once per request.
    """
    sizes = np.arange(1, table.shape[1] + 1, dtype=np.float64)
    total = table.sum(axis=1)
    used = total > 0
    table, tokens, total = table[used], tokens[used], total[used]
    mean_size = (table @ sizes) / total
    per_token = total / tokens
    spread = float(mean_size.var())
    slope = float(np.cov(mean_size, per_token, aweights=tokens)[0, 1]) / spread if spread > 1e-3 else 0.0
    base = float(np.average(per_token, weights=tokens) - slope * (np.average(mean_size, weights=tokens) - 1.0))
    base = max(base, 0.2 * float(per_token.min()))
    line = 1.0 / np.maximum(base + max(slope, 0.0) * (sizes - 1.0), 0.1 * base)
    weight = 1.0 / np.maximum(tokens, 1.0)
    normal = (table * weight[:, None]).T @ table
    right = (table * weight[:, None]).T @ tokens
    # One request's worth of pull towards the line, in the units of the normal matrix.
    pull = np.diag(np.full(len(sizes), 0.02 * float(np.trace(normal)) / len(sizes) + 1e-9))
    rates = np.linalg.solve(normal + pull, right + pull @ line)
    return np.asarray(np.clip(rates, 0.2 * line, 5.0 * line), dtype=np.float64)


def demand_of(looks: tuple[Look, ...]) -> Demand | None:
    """The laws of what was asked, as seen: every prompt, answer and think time equally likely."""
    prompts, outputs, thinks = [], [], []
    for look in looks:
        requests = look.requests
        good = requests.ok
        prompts.append(requests.prompt_tokens[good])
        outputs.append(requests.output_tokens[good])
        order = np.lexsort((requests.start_s, requests.user))
        user, start = requests.user[order], requests.start_s[order]
        end = start + np.where(requests.ok, requests.e2e_s, 0.0)[order]
        pause = start[1:] - end[:-1]
        thinks.append(np.maximum(pause[(user[1:] == user[:-1]) & requests.ok[order][:-1]], 0.0))
    prompt, output, think = np.concatenate(prompts), np.concatenate(outputs), np.concatenate(thinks)
    if len(prompt) < _LEAST_REQUESTS or len(think) < 3:
        return None

    return Demand(*(_law(values.astype(np.float64)) for values in (prompt, output, think)))


def _law(values: Floats) -> Dist:
    from deployctl.catalog.distributions import Dist

    return Dist.model_validate({"dist": "empirical", "values": tuple(values.tolist())})


def scenario_of(twin: Twin, demand: Demand, slo: Slo) -> Scenario:
    """Return the twin as a scenario that the simulator can play."""
    from deployctl.simulator.scenario import Scenario, Server, SloSpec, WorkloadSpec

    return Scenario(
        name="twin",
        server=Server(
            slots=twin.slots,
            prefill_tokens_per_s=twin.prefill,
            decode_tokens_per_s=twin.decode,
            queue_limit=twin.queue_limit,
        ),
        workload=WorkloadSpec(
            prompt_tokens=demand.prompt_tokens, output_tokens=demand.output_tokens, think_s=demand.think_s
        ),
        slo=SloSpec(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s, e2e_s=slo.e2e_s, attainment=slo.attainment),
    )


def forecast(twin: Twin, demand: Demand, slo: Slo, *, max_users: int, requests: int = 4000) -> Forecast:
    """Play the twin at a few levels and say where its attainment crosses the target, and how steeply."""
    scenario = scenario_of(twin, demand, slo)
    levels: dict[int, float] = {}
    inflations: dict[int, float] = {}

    def logit(users: int) -> float:
        if users not in levels:
            missed = play(scenario, users, slo, requests)
            levels[users] = 1.0 - float(missed.mean())
            if 0.003 < missed.mean() < 0.3 and len(missed) >= 40 * users:
                inflations[users] = max(1.0, batch_means(missed, max(2 * users, 4)).inflation)
        share = min(max(levels[users], 0.5 / requests), 1 - 0.5 / requests)
        return math.log((1 - share) / share)

    at_target = math.log((1 - slo.attainment) / slo.attainment)
    low, high = 0, max(1, min(twin.slots, max_users))
    while logit(high) < at_target and high < max_users:
        low, high = high, min(max_users, 2 * high)
    if logit(high) < at_target:
        return Forecast(float(max_users), 8.0, levels, inflations)
    while high - low > max(1, round(0.03 * high)):
        middle = (low + high) // 2
        low, high = (middle, high) if logit(middle) < at_target else (low, middle)
    if low == 0:
        return Forecast(max(0.4, 1.0 - 0.1 * (logit(1) - at_target)), 6.0, levels, inflations)
    slope = (logit(high) - logit(low)) / math.log(high / low)
    far = max(high + 1, round(1.15 * high))
    near = max(1, round(0.87 * low))
    if near < low:
        slope = (logit(far) - logit(near)) / math.log(far / near)
    slope = min(max(slope, 1.0), 60.0)
    knee = low * math.exp(min(max((at_target - logit(low)) / slope, 0.0), math.log(high / low)))
    return Forecast(knee, slope, levels, inflations)


@lru_cache(maxsize=256)
def sensitivity(twin: Twin, demand: Demand, slo: Slo, users: int, requests: int = 6000) -> float:
    """How much a level's attainment follows the host's speed: (d attainment / d log speed)², over the variance of one
    outcome, by playing the twin a little slower and a little faster.
    """
    slow, fast = (
        float(play(scenario_of(twin.at_speed(speed), demand, slo), users, slo, requests, seed=3).mean())
        for speed in (1.0 - _NUDGE, 1.0 + _NUDGE)
    )
    miss = min(max((slow + fast) / 2.0, 1.0 / requests), 1.0 - 1.0 / requests)
    slope = (slow - fast) / (2.0 * _NUDGE)
    return slope**2 / (miss * (1.0 - miss))


def play(scenario: Scenario, users: int, slo: Slo, count: int, seed: int = 0) -> Floats:
    """Outcomes (1.0 for a miss) of about ``count`` requests of the twin at one level, warm-up left out."""
    from deployctl.simulator.virtual import closed_loop

    loop = closed_loop(scenario, users, np.random.SeedSequence([seed, users]))
    step = 1.0
    while loop.sent < count + 3 * users:
        loop.advance(loop.now_s - loop.began_s + step)
        rate = loop.sent / (loop.now_s - loop.began_s)
        step = max((count + 3 * users - loop.sent) / rate, 1.0) if rate > 0 else 2 * step
    open_starts, _ = loop.pending()
    requests = loop.requests()
    end = int(np.searchsorted(requests.start_s, open_starts[0])) if len(open_starts) else len(requests)
    return (~met(requests, slo)[2 * users : max(end, 2 * users + 1)]).astype(np.float64)
