"""What if: attainment, latencies, utilisation and capacity of a scenario on one host or on many, for planning."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployctl.errors import UsageError
from deployctl.simulator.cluster import Balancing, Cluster
from deployctl.simulator.longrun import batch_error, meets, play_requests, settled
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.truth import find_truth
from deployctl.simulator.virtual import ClosedLoop, closed_loop

BALANCING: tuple[Balancing, ...] = ("round-robin", "least-connections")
_REQUESTS = 100_000  # of a what-if, at least
_ROUNDS = 20  # requests of each user, at least
_WARM_UP_ROUNDS = 10
_SEARCH_ROUNDS = 6  # the same, at one level of a search
_SOME_HOSTS = 20
_CLOSE = 0.005  # of N* of many hosts: its search ends within this share
_MOST_USERS = 100_000


@dataclass(frozen=True)
class WhatIf:
    """What ``users`` users of ``hosts`` hosts would get in the long run. Times in seconds, rates per second.

    ``attainment_error`` is a batch-means standard error. ``percentiles`` are of successful requests, keyed by metric
    and then p50, p95, p99; ``refused_share`` of requests got a 503. ``utilisation`` is the share of slots in use.
    """

    scenario: str
    users: int
    hosts: int
    balancing: Balancing
    requests: int
    attainment: float
    attainment_error: float
    meets_slo: bool
    percentiles: dict[str, dict[str, float]]
    requests_per_s: float
    output_tokens_per_s: float
    utilisation: float
    waiting: float  # requests that wait for a slot, on average, on all hosts together
    refused_share: float

    def document(self) -> dict[str, Any]:
        """Return the figures, ready for JSON; undefined ones are None."""
        return {
            "scenario": self.scenario,
            "users": self.users,
            "hosts": self.hosts,
            "balancing": self.balancing,
            "requests": self.requests,
            "attainment": self.attainment,
            "attainment_error": self.attainment_error,
            "meets_slo": self.meets_slo,
            **{name: {key: _finite(value) for key, value in row.items()} for name, row in self.percentiles.items()},
            "requests_per_s": self.requests_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "utilisation": self.utilisation,
            "waiting": self.waiting,
            "refused_share": self.refused_share,
        }


@dataclass(frozen=True)
class Capacity:
    """The largest number of users that keeps the SLO: N* lies from ``n_star`` to ``n_star_high``.

    On one host the two are equal; on many the search ends within half a percent. ``at_least``: even the most users
    that were tried keep it.
    """

    n_star: int
    n_star_high: int
    at_least: bool


def simulate(
    scenario: Scenario,
    users: int,
    *,
    hosts: int = 1,
    balancing: Balancing = "round-robin",
    seed: int = 0,
    requests: int | None = None,
) -> WhatIf:
    """Play ``users`` users on ``hosts`` equal hosts and return what they get.

    ``requests``: how many to play after the warm-up (default: 100,000, and at least 20 of each user). Raises UsageError
    for numbers that make no sense.
    """
    _check(users, hosts, balancing)
    count = requests or max(_REQUESTS, _ROUNDS * users)
    loop = _loop(scenario, users, hosts, balancing, seed)
    play_requests(loop, count + _WARM_UP_ROUNDS * users)
    return _summary(loop, scenario, hosts, balancing)


def find_capacity(
    scenario: Scenario,
    *,
    hosts: int = 1,
    balancing: Balancing = "round-robin",
    seed: int = 0,
    max_users: int = _MOST_USERS,
    cache: Path | None = None,
) -> Capacity:
    """Return N* of ``hosts`` equal hosts: exact on one (see ``truth``), within half a percent on many."""
    _check(1, hosts, balancing)
    if hosts == 1:
        truth = find_truth(scenario, max_users=min(max_users, 2000), cache=cache)
        return Capacity(truth.n_star, truth.n_star, truth.at_least)
    # Few hosts tell nearly what many do, for a fraction of the work: the search widens from 1 to 20 to all.
    some = find_capacity(
        scenario,
        hosts=1 if hosts <= _SOME_HOSTS else _SOME_HOSTS,
        balancing=balancing,
        seed=seed,
        max_users=max_users,
        cache=cache,
    )
    guess = max(1, some.n_star * hosts // (1 if hosts <= _SOME_HOSTS else _SOME_HOSTS))

    def holds(users: int) -> bool:
        loop = _loop(scenario, users, hosts, balancing, seed)
        play_requests(loop, max(_REQUESTS // 2, _SEARCH_ROUNDS * users) + _WARM_UP_ROUNDS * users)
        return _summary(loop, scenario, hosts, balancing).meets_slo

    return _widen_and_bisect(holds, guess, max_users, step=0.2 if hosts <= _SOME_HOSTS else 0.02)


def _widen_and_bisect(holds: Callable[[int], bool], guess: int, max_users: int, step: float) -> Capacity:
    """Step away from ``guess`` by growing shares until the capacity is between two levels; then bisect."""
    low, high = 0, max_users + 1
    users = min(guess, max_users)
    while 0 < users <= max_users:
        if holds(users):
            low = max(low, users)
            if users == max_users:
                return Capacity(max_users, max_users, at_least=True)
            users = min(max_users, users + max(1, round(step * users)))
        else:
            high = min(high, users)
            users -= max(1, round(step * users))
        if low and high <= max_users:
            break
        step *= 2
    while high - low > max(1, _CLOSE * low):
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return Capacity(low, high - 1, at_least=False)


def _check(users: int, hosts: int, balancing: str) -> None:
    if not 1 <= users <= _MOST_USERS:
        raise UsageError(f"users must be between 1 and {_MOST_USERS}, not {users}", hint="--users 50")
    if not 1 <= hosts <= 10_000:
        raise UsageError(f"hosts must be between 1 and 10000, not {hosts}", hint="--hosts 3")
    if balancing not in BALANCING:
        raise UsageError(f"there is no balancing {balancing}", hint=f"one of: {', '.join(BALANCING)}")


def _loop(scenario: Scenario, users: int, hosts: int, balancing: Balancing, seed: int) -> ClosedLoop | Cluster:
    seeds = np.random.SeedSequence([seed, users, hosts])
    calm = scenario.model_copy(update={"server": scenario.server.undisturbed})
    return closed_loop(calm, users, seeds) if hosts == 1 else Cluster(calm, users, seeds, hosts, balancing)


def _summary(loop: ClosedLoop | Cluster, scenario: Scenario, hosts: int, balancing: Balancing) -> WhatIf:
    kept = settled(loop)
    requests, waits = loop.requests(), loop.waits_s()[kept]
    start, ok = requests.start_s[kept], requests.ok[kept]
    met = meets(requests, scenario.slo.to_slo())[kept]
    seconds = float(start[-1] - start[0]) if len(start) > 1 else math.inf
    e2e, tokens = requests.e2e_s[kept], requests.output_tokens[kept]
    rate = (len(start) - 1) / seconds
    # Little's law, for the slots and for the queue: mean number = rate x mean time.
    in_slot = float(np.sum(e2e[ok] - waits[ok])) / max(len(start), 1)
    waited = float(np.sum(waits[ok])) / max(len(start), 1)
    rows = {"wait_s": waits, "ttft_s": requests.ttft_s[kept], "tpot_s": requests.tpot_s[kept], "e2e_s": e2e}
    return WhatIf(
        scenario=scenario.name,
        users=loop.users,
        hosts=hosts,
        balancing=balancing,
        requests=len(met),
        attainment=float(met.mean()) if len(met) else 0.0,
        attainment_error=batch_error(met),
        meets_slo=bool(len(met)) and float(met.mean()) >= scenario.slo.attainment,
        percentiles={name: _percentiles(values[ok]) for name, values in rows.items()},
        requests_per_s=rate,
        output_tokens_per_s=rate * float(tokens[ok].sum()) / max(len(start), 1),
        utilisation=rate * in_slot / (scenario.server.slots * hosts),
        waiting=rate * waited,
        refused_share=1 - float(ok.mean()) if len(ok) else 0.0,
    )


def _percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return dict.fromkeys(("p50", "p95", "p99"), math.nan)
    p50, p95, p99 = np.quantile(values, [0.5, 0.95, 0.99]).tolist()
    return {"p50": p50, "p95": p95, "p99": p99}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
