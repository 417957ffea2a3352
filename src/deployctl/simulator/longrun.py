"""The attainment of one level in the long run, from independent replications, with its standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.probe import Requests, Slo
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.virtual import ClosedLoop, closed_loop

REPLICATION = 20_000  # requests of one replication, at least
_ROUNDS = 50  # requests of each user in one replication, at least
_WARM_UP_ROUNDS = 10  # requests of each user that are discarded as its beginning
_MANY = 20  # replications from which their own spread is a fair standard error


@dataclass(frozen=True)
class Level:
    """What ``users`` users get in the long run: attainment, its standard error, and the requests behind them."""

    users: int
    attainment: float
    error: float
    requests: int

    def misses(self, target: float) -> float:
        """The distance to the target, in standard errors (infinite when both are exact)."""
        return abs(self.attainment - target) / self.error if self.error > 0 else math.inf


def meets(requests: Requests, slo: Slo) -> NDArray[np.bool_]:
    """Say of each request whether it met every threshold of the SLO."""
    met = requests.ok.copy()
    for value, limit in ((requests.ttft_s, slo.ttft_s), (requests.tpot_s, slo.tpot_s), (requests.e2e_s, slo.e2e_s)):
        if limit is not None:
            met &= value <= limit
    return met


class Loop(Protocol):
    """What a long run needs of a closed loop: ``virtual.ClosedLoop``, or a cluster of them."""

    users: int
    now_s: float
    began_s: float

    @property
    def sent(self) -> int:
        """Requests that have been sent."""
        ...

    def advance(self, until_s: float) -> None:
        """Play on."""
        ...

    def requests(self) -> Requests:
        """Those that have ended, in order of their start."""
        ...

    def pending(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and TTFT of those that are open."""
        ...


def play_requests(loop: Loop, count: int) -> None:
    """Advance ``loop`` until at least ``count`` requests have been sent."""
    step = 1.0
    while loop.sent < count:
        loop.advance(loop.now_s - loop.began_s + step)
        rate = loop.sent / (loop.now_s - loop.began_s)
        step = max((count - loop.sent) / rate, 1.0) if rate > 0 else 2 * step


def replicate(scenario: Scenario, users: int, seed: int, number: int) -> ClosedLoop:
    """Play replication ``number`` of a level: 20,000 requests and 50 of each user at least, after the warm-up."""
    loop = closed_loop(scenario, users, np.random.SeedSequence([seed, users, number]))
    play_requests(loop, max(REPLICATION, _ROUNDS * users) + _WARM_UP_ROUNDS * users)
    return loop


def settled(loop: Loop) -> slice:
    """The requests of ``loop.requests()`` that count: without the warm-up, and without the end.

    Requests that end late are missing at the end of the record, so whatever was sent at or after the start of the
    oldest open request is left out: the quick ones among them would be over-represented.
    """
    requests = loop.requests()
    pending, _ = loop.pending()
    end = int(np.searchsorted(requests.start_s, pending[0])) if len(pending) else len(requests)
    return slice(min(_WARM_UP_ROUNDS * loop.users, end), end)


class Attainment:
    """Accumulates replications of one level. Deterministic by ``seed``; more replications refine, never redraw."""

    def __init__(self, scenario: Scenario, users: int, seed: int = 0) -> None:
        self._scenario = scenario
        self._slo = scenario.slo.to_slo()
        self._users = users
        self._seed = seed
        self._shares: list[float] = []
        self._counts: list[int] = []
        self._within: list[float] = []  # batch-means variance of each replication's share

    def add(self) -> None:
        """Play one more replication."""
        loop = replicate(self._scenario, self._users, self._seed, len(self._shares))
        met = meets(loop.requests(), self._slo)[settled(loop)]
        self._shares.append(float(met.mean()) if len(met) else 0.0)
        self._counts.append(len(met))
        self._within.append(_batch_variance(met))

    @property
    def level(self) -> Level:
        """The level as known so far.

        The standard error is that of the replications' shares; with fewer than twenty, of batch means within them
        (Law: Simulation Modeling and Analysis, 5th ed., section 9.5), whichever is larger.
        """
        count = len(self._shares)
        if not any(self._counts):
            return Level(self._users, 0.0, math.inf, 0)
        between = float(np.var(self._shares, ddof=1)) / count if count > 1 else 0.0
        within = math.fsum(self._within) / count**2
        error = math.sqrt(between if count >= _MANY else max(between, within))
        mean = float(np.average(self._shares, weights=self._counts))
        return Level(self._users, mean, error, sum(self._counts))


def batch_error(met: NDArray[np.bool_]) -> float:
    """The standard error of the share of ``met`` by batch means, which honour that neighbours depend on each other."""
    return math.sqrt(_batch_variance(met))


def _batch_variance(met: NDArray[np.bool_], batches: int = 25) -> float:
    """The variance of the mean of ``met``, from the means of ``batches`` equal batches."""
    size = len(met) // batches
    if size < 1:
        return 0.25 / max(len(met), 1)
    means = met[: size * batches].reshape(batches, size).mean(axis=1)
    return float(means.var(ddof=1)) / batches
