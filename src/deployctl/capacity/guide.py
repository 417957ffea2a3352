"""What leads the search: belief, twin and plan. It says which level is worth its time; it proves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.belief import Belief, Posterior, Seen
from deployctl.capacity.control import Control
from deployctl.capacity.evidence import Evidence, Unrest, usual_inflation
from deployctl.capacity.history import History
from deployctl.capacity.levels import Aim, Plan, Terms, candidates, log_need, weigh_levels
from deployctl.capacity.probe import Look, Slo
from deployctl.capacity.result import Prior
from deployctl.capacity.twin import Demand, Forecast, Twin, demand_of, fit, forecast, sensitivity
from deployctl.stats.sequential import BETTER, Alternatives
from deployctl.stats.wander import Wander

_SURE = 0.05  # the capacity is believed to be at least this quantile whatever comes
_PLENTY = 4.0  # times the cost of certifying it must be left before more is tried first
_CLOSEST = 0.95  # odds of a miss, in those at the target: nearer ones are not worth betting on
_LIKELY = 0.2  # weight of each of four bets on what is believed; the rest is spread
_LEFT = 0.5  # share of the variance that a control variate is expected to leave before it was tried


@dataclass(frozen=True)
class Situation:
    """Where the search stands: what is proven, what may still be tried, the time left and each level's error share.

    ``spare``: the time is paid for already. ``closed``: levels not to be tried again.
    """

    certified: int
    ceiling: int
    left_s: float
    spare: bool
    alpha: Callable[[int], float]
    closed: frozenset[int]


class Guide:
    """Learns from every look; :meth:`choose` weighs the levels."""

    def __init__(self, slo: Slo, prior: Prior, max_users: int, aim: Aim) -> None:
        self.history = History()
        self.twin: Twin | None = None
        self._forecast: Forecast | None = None
        self._seen_demand: Demand | None = None
        self._alternatives: dict[int, Alternatives] = {}
        self._slo = slo
        self._prior = prior
        self._max = max_users
        self._aim = aim
        slots = prior.slots
        guess = prior.users_guess / 2 if prior.users_guess else 2.0 * slots if slots else None
        self._belief = Belief(slo.attainment, guess, max_users)

    def learn(self, looks: tuple[Look, ...]) -> None:
        """Fit the twin to what was seen, and believe its forecast about as far as such forecasts go."""
        twin = fit(looks, self._prior.slots)
        if self._prior.demand is None:
            self._seen_demand = demand_of(looks)
        demand = self._prior.demand or self._seen_demand
        if twin is None or demand is None:
            return
        self.twin = twin
        self._forecast = told = forecast(twin, demand, self._slo, max_users=self._max)
        self._belief = Belief(
            self._slo.attainment,
            told.users,
            self._max,
            spread=0.08 if self._prior.demand is not None else 0.16,
            steepness=told.steepness,
            steepness_spread=0.35,
            stray=0.03,
        )

    def control(self) -> Control | None:
        """The twin as it is now, as a control variate, where the demand is known.

        To be taken before a trial begins: a twin that learnt from the outcomes it is to correct would flatter them.
        """
        if self.twin is None or self._prior.demand is None:
            return None
        return Control(self.twin, self._prior.demand, self._slo)

    def expected_inflation(self, users: int) -> float:
        """Variance inflation to assume at a level before its outcomes say: between the twin's and the usual one."""
        usual = usual_inflation(users, self._prior.slots)
        told = self._forecast.inflation(users) if self._forecast is not None else None
        return usual if told is None else math.sqrt(usual * told)

    def unrest(self, users: int, found: Wander) -> Unrest | None:
        """What a wandering host does to a level, by the twin; None where it keeps still or there is no twin."""
        demand = self._prior.demand or self._seen_demand
        if found.sd == 0.0 or self.twin is None or demand is None:
            return None
        return Unrest(found, sensitivity(self.twin, demand, self._slo, users))

    def alternatives(self, users: int) -> Alternatives:
        """What to bet on at a level: the belief's own idea of its misses, fixed before the level's first outcome."""
        if users not in self._alternatives:
            self._alternatives[users] = self._bets(users)
        return self._alternatives[users]

    def _bets(self, users: int) -> Alternatives:
        posterior = self.posterior()
        miss = posterior.miss(np.array([users]))[:, 0]
        target = self._slo.attainment
        odds = (miss / (1.0 - miss)) / ((1.0 - target) / target)
        holds = odds < _CLOSEST
        if posterior.weights[holds].sum() < 0.01:
            return BETTER
        order = np.argsort(odds[holds])
        summed = np.cumsum(posterior.weights[holds][order])
        places = np.searchsorted(summed, np.array([0.1, 0.35, 0.65, 0.9]) * summed[-1])
        likely = odds[holds][order][np.minimum(places, len(order) - 1)]
        rest = 1.0 - 4 * _LIKELY
        return Alternatives(
            (*(float(x) for x in likely), *BETTER.multiples),
            (*(_LIKELY for _ in likely), *(rest * weight for weight in BETTER.weights)),
        )

    def posterior(self, running: Evidence | None = None) -> Posterior:
        """The belief given all that was seen."""
        return self._belief.given(Seen(found.users, found.hits, found.misses) for found in self.history.all(running))

    def choose(self, now: Situation, running: Evidence | None = None) -> tuple[int, Plan] | None:
        """The level that is worth most now, and the plan that says so; None where nothing is worth its time.

        With time in plenty, what can be certified anyway counts as certified: a trial near the capacity that fails
        costs its time and nothing else. With little time, or once nothing beyond that floor is worth trying, the aim
        is to have something proven.
        """
        posterior = self.posterior(running)
        levels = candidates(now.certified, now.ceiling, posterior, keep=running.users if running else None)
        levels = levels[[users not in now.closed for users in levels.tolist()]]
        if len(levels) == 0:
            return None
        terms = self._terms(levels, now, running)

        def weighed(base: int) -> Plan:
            return weigh_levels(levels, base, posterior, self._slo.attainment, terms, self._aim, now.left_s, self._max)

        plan = weighed(now.certified)
        floor = min(int(posterior.quantile(_SURE)), int(levels[-1]))
        if floor > now.certified:
            dear = float(np.interp(floor, plan.levels, plan.cost_s))
            bold = weighed(floor)
            if now.left_s > _PLENTY * dear and (best := bold.best(spare=False)) is not None:
                return best, bold
        found = plan.best(spare=now.spare)
        return None if found is None else (found, plan)

    def _terms(self, levels: NDArray[np.int64], now: Situation, running: Evidence | None) -> Terms:
        need, rate, overhead = [], [], []
        for users in levels.tolist():
            known = self.history.evidence(users, running)
            cycle = self.history.cycle_s(users, running)
            need.append(log_need(now.alpha(users), known.for_passing(self._slo.attainment)))
            rate.append(users / cycle)
            here = running is not None and users == running.users
            overhead.append(0.0 if here else 2.0 * cycle)
        usual = {users: self.expected_inflation(users) for users in (*self.history.levels, *levels.tolist())}
        if running is not None:
            usual[running.users] = self.expected_inflation(running.users)
        ratio = self.history.inflation_ratio(usual, running)
        spread = np.array([max(1.0, ratio * usual[users]) for users in levels.tolist()])
        left, left_inflation = self.history.control(running) or (_LEFT, float(spread.mean()))
        if self._prior.demand is None:
            left = math.inf
        return Terms(np.array(need), spread, np.array(rate), np.array(overhead), left, left_inflation)
