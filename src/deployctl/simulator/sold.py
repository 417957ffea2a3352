"""The proof for sold numbers: many yes-or-no questions well off a known capacity, and how often they went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployctl.capacity.hold import holds
from deployctl.capacity.probe import Verdict
from deployctl.errors import UsageError
from deployctl.simulator.bench import baseline_prior
from deployctl.simulator.parallel import spread
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.truth import find_truth
from deployctl.stats.binomial import clopper_pearson_upper

OFF = 0.2  # share of N* by which the sold numbers are off it, at least
BRISK = 0.5  # requests/s from which on a host's time to decide is held against the target
_BUDGET_S = 6 * 3600.0
_SEEDS_AT_ONCE = 10


@dataclass(frozen=True)
class Question:
    """One question and its answer. ``seconds`` of host time, baseline included; ``requests_per_s`` while it took."""

    scenario: str
    n_star: int
    users: int
    verdict: Verdict
    seconds: float
    requests_per_s: float

    @property
    def wrong(self) -> bool:
        """A yes above the capacity, or a no below it."""
        return self.verdict == ("pass" if self.users > self.n_star else "fail")


def bench_sold(
    scenarios: Sequence[Scenario],
    seeds: int,
    *,
    max_users: int = 1000,
    workers: int | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Ask ``seeds`` times at a fifth below N* and as often at a fifth above, on each scenario with such numbers.

    Returns the figures per scenario and pooled, ready for JSON: ``error_rate``, ``inconclusive_rate``,
    ``invalidated_rate`` (shares of 1), ``median_minutes`` and ``p95_minutes`` of host time; ``brisk``: the same over
    the questions that saw at least 0.5 requests/s. Raises UsageError for no seeds.
    """
    if seeds < 1:
        raise UsageError("bench-search needs at least one seed", hint="--seeds 20")
    say = progress or (lambda _: None)
    tasks = [
        _Ask(scenario, tuple(some.tolist()), max_users, cache)
        for scenario in scenarios
        for some in np.array_split(np.arange(seeds), math.ceil(seeds / _SEEDS_AT_ONCE))
    ]
    asked: list[Question] = []
    for done in spread(_ask, tasks, workers):
        asked += done
        say(f"{len(asked)} questions answered")
    rows = []
    for scenario in scenarios:
        mine = [question for question in asked if question.scenario == scenario.name]
        if mine:
            rows.append(
                {
                    "name": scenario.name,
                    "n_star": mine[0].n_star,
                    "asked": sorted({question.users for question in mine}),
                }
                | figures(mine)
            )
    brisk = [question for question in asked if question.requests_per_s >= BRISK]
    return {"seeds": seeds, "scenarios": rows, "pooled": figures(asked), "brisk": figures(brisk)}


def figures(asked: Sequence[Question]) -> dict[str, Any]:
    """Return the figures of some questions; undefined ones are None."""
    if not asked:
        return {"questions": 0}
    wrong = sum(question.wrong for question in asked)
    minutes = [question.seconds / 60 for question in asked]
    return {
        "questions": len(asked),
        "error_rate": wrong / len(asked),
        "error_upper": clopper_pearson_upper(wrong, len(asked), 0.95),
        "inconclusive_rate": sum(question.verdict == "inconclusive" for question in asked) / len(asked),
        "invalidated_rate": sum(question.verdict == "invalid" for question in asked) / len(asked),
        "median_minutes": float(np.median(minutes)),
        "p95_minutes": float(np.quantile(minutes, 0.95)),
        "requests_per_s": float(np.median([question.requests_per_s for question in asked])),
    }


def sold_numbers(n_star: int, max_users: int) -> tuple[int, ...]:
    """The largest number that is at least a fifth below ``n_star`` and the smallest at least a fifth above it."""
    low, high = math.floor((1 - OFF) * n_star + 1e-9), max(n_star + 1, math.ceil((1 + OFF) * n_star - 1e-9))
    return tuple(users for users in (low, high) if 1 <= users <= max_users)


@dataclass(frozen=True)
class _Ask:
    scenario: Scenario
    seeds: tuple[int, ...]
    max_users: int
    cache: Path | None


def _ask(task: _Ask) -> list[Question]:
    scenario = task.scenario
    truth = find_truth(scenario, max_users=task.max_users, cache=task.cache)
    if truth.n_star >= task.max_users:
        return []
    asked = []
    for users in sold_numbers(truth.n_star, task.max_users):
        for seed in task.seeds:
            prober = VirtualProber(scenario, seed)
            prior = baseline_prior(prober)
            found = holds(prober, scenario.slo.to_slo(), users, prior, budget_s=_BUDGET_S)
            rate = prober.requests / prober.host_s
            asked.append(Question(scenario.name, truth.n_star, users, found.verdict, prober.host_s, rate))
    return asked
