"""The proof: many searches on scenarios of known capacity, in virtual time, and how often they were right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployctl.capacity.result import Budget, Prior
from deployctl.capacity.twin import Demand
from deployctl.errors import UsageError
from deployctl.simulator.longrun import Level
from deployctl.simulator.parallel import spread
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.rules import RULES, Answer, Question
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.truth import Truth, find_levels, find_truth
from deployctl.stats.binomial import clopper_pearson_upper

_SEEDS_AT_ONCE = 5


@dataclass(frozen=True)
class Outcome:
    """One search: what it answered, against the truth, and what it cost in seconds of server time and requests."""

    scenario: str
    seed: int
    n_star: int
    answer: Answer
    seconds: float
    requests: int
    probes: int

    @property
    def false_sale(self) -> bool:
        """More was sold than fits."""
        return self.answer.users > self.n_star

    @property
    def within(self) -> bool:
        """The answer is within one user or 5 % of the truth."""
        return abs(self.answer.users - self.n_star) <= max(1.0, 0.05 * self.n_star)

    @property
    def bracketed(self) -> bool:
        """The interval for N* holds it."""
        low, high = self.answer.bracket or (0, None)
        return low <= self.n_star <= (math.inf if high is None else high)


@dataclass(frozen=True)
class Report:
    """All searches of one rule. ``document()`` is what ``bench-search --json`` prints."""

    rule: str
    seeds: int
    outcomes: tuple[Outcome, ...]
    truths: dict[str, Truth]
    levels: dict[str, dict[int, Level]]

    def document(self) -> dict[str, Any]:
        """Return the figures per scenario and pooled, ready for JSON; rates are shares of 1, undefined ones None."""
        scenarios = [
            {"name": name, "n_star": truth.n_star, "n_star_sure": truth.sure}
            | figures([outcome for outcome in self.outcomes if outcome.scenario == name], self.levels)
            for name, truth in self.truths.items()
        ]
        sales = sum(outcome.false_sale for outcome in self.outcomes)
        pooled = figures(self.outcomes, self.levels)
        pooled["false_sale_upper"] = clopper_pearson_upper(sales, len(self.outcomes), 0.95)
        return {"rule": self.rule, "seeds": self.seeds, "scenarios": scenarios, "pooled": pooled}


def figures(outcomes: Sequence[Outcome], levels: Mapping[str, Mapping[int, Level]]) -> dict[str, Any]:
    """Return the figures of some searches; ``levels`` holds the true attainment of every level with an interval.

    ``false_sale_rate`` and ``inconclusive_rate`` are of all searches; ``within_rate`` and ``median_shortfall`` (users,
    and as a share of N*) of those that decided. ``coverage`` is of the 95 % intervals that the rule gave for the
    attainment of its levels, against the true attainment; ``bracket_coverage`` of its intervals for N*. Server-hours
    count everything from the baseline to the last drain. ``invalidated_rate``: searches in which a probe was void.
    """
    decided = [outcome for outcome in outcomes if outcome.answer.decided]
    shortfalls = [outcome.n_star - outcome.answer.users for outcome in decided]
    hours = [outcome.seconds / 3600 for outcome in outcomes]
    covered = [
        interval.low <= levels[outcome.scenario][interval.users].attainment <= interval.high
        for outcome in outcomes
        for interval in outcome.answer.intervals
    ]
    return {
        "searches": len(outcomes),
        "false_sale_rate": _share([outcome.false_sale for outcome in outcomes]),
        "within_rate": _share([outcome.within for outcome in decided]),
        "median_shortfall": _median(shortfalls),
        "median_shortfall_share": _median(
            [short / outcome.n_star for short, outcome in zip(shortfalls, decided, strict=True) if outcome.n_star]
        ),
        "coverage": _share(covered),
        "bracket_coverage": _share([outcome.bracketed for outcome in decided if outcome.answer.bracket]),
        "median_server_hours": _median(hours),
        "p95_server_hours": float(np.quantile(hours, 0.95)) if hours else None,
        "median_requests": _median([outcome.requests for outcome in outcomes]),
        "inconclusive_rate": _share([not outcome.answer.decided for outcome in outcomes]),
        "invalidated_rate": _share([outcome.answer.invalid for outcome in outcomes]),
        "cliff_flagged_rate": _share(
            [any("cliff" in note.lower() for note in outcome.answer.notes) for outcome in outcomes]
        ),
    }


def bench_search(
    scenarios: Sequence[Scenario],
    seeds: int,
    *,
    rule: str = "search",
    max_users: int = 1000,
    budget: Budget | None = None,
    workers: int | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Run ``seeds`` searches by ``rule`` on every scenario, on all cores (or ``workers``).

    ``cache``: a folder that keeps the truths. ``budget`` is for our own search (default: certify). ``progress`` is
    told what has been done, in words. Raises UsageError for an unknown rule or no seeds.
    """
    if rule not in RULES:
        raise UsageError(f"there is no rule {rule}", hint=f"one of: {', '.join(RULES)}")
    if seeds < 1:
        raise UsageError("bench-search needs at least one seed", hint="--seeds 20")
    say = progress or (lambda _: None)
    truths: dict[str, Truth] = {}
    for scenario, truth in spread(_find, [_Find(scenario, max_users, cache) for scenario in scenarios], workers):
        truths[scenario] = truth
        say(f"{scenario}: N* = {truth.n_star}")
    tasks = [
        _Run(scenario, truths[scenario.name].n_star, rule, tuple(some), max_users, budget or Budget(mode="certify"))
        for scenario in scenarios
        for some in np.array_split(np.arange(seeds), math.ceil(seeds / _SEEDS_AT_ONCE))
    ]
    outcomes: list[Outcome] = []
    for done in spread(_run, tasks, workers):
        outcomes += done
        say(f"{len(outcomes)} of {seeds * len(scenarios)} searches")
    order = {scenario.name: index for index, scenario in enumerate(scenarios)}
    outcomes.sort(key=lambda outcome: (order[outcome.scenario], outcome.seed))
    asked: dict[str, set[int]] = {scenario.name: set() for scenario in scenarios}
    for outcome in outcomes:
        asked[outcome.scenario] |= {interval.users for interval in outcome.answer.intervals}
    levels = {}
    for name, found in spread(
        _level, [_Levels(scenario, frozenset(asked[scenario.name]), cache) for scenario in scenarios], workers
    ):
        levels[name] = found
        say(f"{name}: true attainment of {len(found)} levels")
    return Report(rule, seeds, tuple(outcomes), {name: truths[name] for name in order}, levels)


def baseline_prior(prober: VirtualProber, requests: int = 4) -> Prior:
    """Measure one user alone without think time, at the prober's cost, as a job does before it searches.

    The guess keeps every slot busy at the speed that one user saw: slots · (e2e + think) / e2e. The demand is the
    workload that the load generator plays, which it knows; of the server it knows the slots and what it measures.
    """
    scenario = prober.scenario
    workload = scenario.workload
    demand = Demand(workload.prompt_tokens, workload.output_tokens, workload.think_s)
    run = prober.alone(requests + 1)
    e2e = run.last.requests.e2e_s[1:]  # the first one warms up
    typical = float(np.median(e2e[np.isfinite(e2e)])) if np.isfinite(e2e).any() else math.inf
    slots = scenario.server.slots
    if not 0 < typical < math.inf:
        return Prior(None, slots, demand)
    return Prior(max(1, round(slots * (typical + workload.think_s.expected()) / typical)), slots, demand)


@dataclass(frozen=True)
class _Find:
    scenario: Scenario
    max_users: int
    cache: Path | None


def _find(task: _Find) -> tuple[str, Truth]:
    return task.scenario.name, find_truth(task.scenario, max_users=task.max_users, cache=task.cache)


@dataclass(frozen=True)
class _Levels:
    scenario: Scenario
    users: frozenset[int]
    cache: Path | None


def _level(task: _Levels) -> tuple[str, dict[int, Level]]:
    return task.scenario.name, find_levels(task.scenario, task.users, cache=task.cache)


@dataclass(frozen=True)
class _Run:
    scenario: Scenario
    n_star: int
    rule: str
    seeds: tuple[int, ...]
    max_users: int
    budget: Budget


def _run(task: _Run) -> list[Outcome]:
    return [
        search_once(task.scenario, task.n_star, task.rule, int(seed), task.max_users, task.budget)
        for seed in task.seeds
    ]


def search_once(scenario: Scenario, n_star: int, rule: str, seed: int, max_users: int, budget: Budget) -> Outcome:
    """Run one search: the baseline where the rule uses one, then the rule; every second of the host is billed."""
    prober = VirtualProber(scenario, seed)
    prior = baseline_prior(prober) if rule == "search" else Prior()
    answer = RULES[rule](prober, Question(scenario.slo.to_slo(), prior, max_users, budget))
    return Outcome(scenario.name, seed, n_star, answer, prober.host_s, prober.requests, prober.probes)


def _share(values: Sequence[bool]) -> float | None:
    return float(np.mean(values)) if values else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
