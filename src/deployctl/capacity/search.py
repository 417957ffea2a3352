"""The search: probe where it pays most, keep what is proven, and say what every second was spent on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.belief import Belief, Posterior, Seen
from deployctl.capacity.control import Control
from deployctl.capacity.evidence import Evidence
from deployctl.capacity.history import History
from deployctl.capacity.levels import Aim, Terms, candidates, log_need, weigh_levels
from deployctl.capacity.probe import Look, Prober, Slo, Verdict
from deployctl.capacity.result import Budget, Prior, ProbeSummary, Result, Status
from deployctl.capacity.trial import Trial
from deployctl.capacity.twin import Twin, demand_of, fit, forecast
from deployctl.errors import UsageError
from deployctl.events import Emit, ProbeEnded, Warned, discard

MODE_SECONDS = {"quick": 600.0, "standard": 3600.0, "certify": 7 * 86400.0}
"""Host time of each mode where the budget names none."""

MODE_AIM = {
    "quick": Aim(tolerance=0.25, patience_s=600.0, longest_s=600.0),
    "standard": Aim(tolerance=0.08, patience_s=3600.0, longest_s=3600.0),
    "certify": Aim(tolerance=0.05, patience_s=4 * 3600.0, longest_s=4 * 3600.0),
}

_LOYALTY = 0.2  # a running level is left only for one that is worth this much more (tolerances of shortfall)
_LEAP = 3  # no level is tried beyond so many times the highest one that was seen
_ALPHA_KEPT = 0.6  # share of the remaining error budget that each abandoned level leaves to the next


def search(
    prober: Prober,
    slo: Slo,
    prior: Prior | None = None,
    budget: Budget | None = None,
    *,
    max_users: int = 1000,
    confidence: float = 0.95,
    emit: Emit = discard,
) -> Result:
    """Find the largest number of users that provably keeps the SLO.

    Pure: the only clock is the seconds that the probes report. Raises UsageError for an SLO or limit that no search can
    answer; whatever the host does ends in a :class:`Result`.
    """
    if not 0.0 < slo.attainment < 1.0:
        raise UsageError(
            f"an SLO's attainment must lie between 0 and 1, not {slo.attainment}",
            hint="use a share such as 0.95; no finite test can prove that every request will do",
        )
    if max_users < 1 or not 0.5 < confidence < 1.0:
        raise UsageError("the search needs at least one user and a confidence between 0.5 and 1")
    return _Search(prober, slo, prior or Prior(), budget or Budget(), max_users, confidence, emit).answer()


class _Search:
    """The state of one search.

    Errors: with attainment falling in the number of users, selling too much means that some level above the capacity
    passed its test. Levels are tested one after the other, each at its own share of 1 - confidence; a level that passes
    hands its share on (a false pass is already the error, so nothing above it adds any: fixed-sequence testing, Maurer,
    Hothorn & Lehmacher 1995), one that is given up keeps it. The shares of the given-up levels sum to less than all.
    """

    def __init__(
        self, prober: Prober, slo: Slo, prior: Prior, budget: Budget, max_users: int, confidence: float, emit: Emit
    ) -> None:
        self._prober = prober
        self._slo = slo
        self._prior = prior
        self._aim = MODE_AIM[budget.mode]
        self._seconds = budget.seconds if budget.seconds is not None else MODE_SECONDS[budget.mode]
        self._spare = budget.seconds is not None
        self._max = max_users
        self._confidence = confidence
        self._emit = emit
        self._belief = Belief(slo.attainment, prior.users_guess or _guess(prior.slots), max_users)
        self._history = History(prior.slots)
        self._activity = {"warm-up": 0.0, "deciding": 0.0, "draining": 0.0}
        self._notes: list[str] = []
        self._probes: list[ProbeSummary] = []
        self._certified = 0
        self._failed: int | None = None  # the lowest level proven not to hold
        self._given_up: list[int] = []
        self._alpha: dict[int, float] = {}
        self._void = False
        self._looks: list[Look] = []
        self._twin: Twin | None = None

    def answer(self) -> Result:
        """Probe until nothing more is worth its time, then say what is known."""
        while (level := self._next_level()) is not None:
            verdict = self._probe(level)
            if verdict == "invalid":
                self._emit(Warned(f"the probe at {level} users is void; it is repeated once"))
                verdict = self._probe(level) if self._left() > 0 else "invalid"
            if verdict == "invalid":
                self._void = True
                break
            if verdict == "pass":
                self._certified = max(self._certified, level)
                continue
            self._given_up.append(level)
            if verdict == "fail":
                self._failed = min(self._failed or level, level)
        return self._result()

    # Which level

    def _next_level(self) -> int | None:
        if self._left() <= 0.02 * self._seconds:
            return None
        if not self._probes:
            return min(self._max, self._prior.slots or max(1, (self._prior.users_guess or 2) // 2))
        posterior = self._belief.given(self._seen())
        levels = candidates(self._certified, self._ceiling(), posterior)
        if len(levels) == 0:
            return None
        plan = weigh_levels(
            levels, self._certified, posterior, self._slo.attainment, self._terms(levels, None), self._aim, self._left()
        )
        if (best := plan.best(spare=self._spare)) is not None:
            return best
        # Nobody certified and nothing promising: one user is the question that must be answered.
        return 1 if self._certified == 0 and self._failed is None and self._worth_asking_one() else None

    def _worth_asking_one(self) -> bool:
        return self._given_up.count(1) < 1

    def _learn(self, looks: tuple[Look, ...]) -> None:
        """Fit the twin to what was seen, and believe its forecast about as far as such forecasts go."""
        twin = fit(looks, self._prior.slots)
        demand = self._prior.demand or demand_of(looks)
        if twin is None or demand is None:
            return
        self._twin = twin
        told = forecast(twin, demand, self._slo, max_users=self._max)
        self._belief = Belief(
            self._slo.attainment,
            told.users,
            self._max,
            spread=0.08 if self._prior.demand is not None else 0.16,
            steepness=told.steepness,
            steepness_spread=0.35,
            stray=0.03,
        )

    def _worth_it(self, found: Evidence, look: Look) -> bool:
        """Whether the running trial is still the best use of the next second."""
        if self._twin is None and found.requests >= 40 and found.cycles >= 3.0:
            self._learn((look,))
        if self._twin is None and len(self._probes) == 0 and found.for_failing(self._slo.attainment) < 2.0:
            return True  # the first probe is there to learn from
        posterior = self._belief.given(self._seen(found))
        if found.users == 1 and self._certified == 0:
            return True  # a no needs proof as much as a yes
        levels = candidates(self._certified, self._ceiling(), posterior, keep=found.users)
        plan = weigh_levels(
            levels,
            self._certified,
            posterior,
            self._slo.attainment,
            self._terms(levels, found),
            self._aim,
            self._left(),
        )
        best = plan.best(spare=self._spare)
        if found.cycles < 2.0 and found.for_failing(self._slo.attainment) < 2.0:
            return True
        return best is not None and plan.at(found.users) + _LOYALTY >= plan.at(best)

    def _seen(self, running: Evidence | None = None) -> list[Seen]:
        found = {users: self._history.evidence(users) for users in self._history.levels}
        if running is not None:
            found[running.users] = running
        return [Seen(users, evidence.hits, evidence.misses) for users, evidence in found.items()]

    def _terms(self, levels: NDArray[np.int64], running: Evidence | None) -> Terms:
        need, spread, rate, overhead = [], [], [], []
        for users in levels.tolist():
            known = running if running is not None and users == running.users else self._history.evidence(users)
            credit = known.for_passing(self._slo.attainment) if known.requests else 0.0
            cycle = self._history.cycle_s(users, running)
            need.append(log_need(self._alpha_for(users), credit))
            gain = self._history.gain(self._prior.demand is not None)
            spread.append(self._history.inflation(users, running) / gain)
            rate.append(users / cycle)
            here = running is not None and users == running.users
            overhead.append(0.0 if here else 2.0 * cycle)
        return Terms(np.array(need), np.array(spread), np.array(rate), np.array(overhead))

    def _ceiling(self) -> int:
        """The lowest level not to be tried: proven not to hold, beyond the maximum, or too far beyond what was seen.

        A host is never thrown from a handful of users to hundreds on the word of a model.
        """
        seen = max(self._history.levels, default=self._prior.slots or 1)
        return min(self._max + 1, self._failed or self._max + 1, _LEAP * seen + 1)

    def _alpha_for(self, level: int) -> float:
        if level in self._alpha:
            return self._alpha[level]
        used = len(set(self._given_up))
        return (1.0 - self._confidence) * (1.0 - _ALPHA_KEPT) * _ALPHA_KEPT**used

    # One probe

    def _left(self) -> float:
        return self._seconds - math.fsum(probe.seconds for probe in self._probes)

    def _probe(self, level: int) -> Verdict:
        alpha = self._alpha.setdefault(level, self._alpha_for(level))
        trial = Trial(
            level,
            self._slo,
            alpha_pass=alpha,
            alpha_fail=1.0 - self._confidence if level == 1 else alpha,
            slots=self._prior.slots,
            earlier=self._history.series(level),
            control=self._frozen_control(),
            worth_it=self._worth_it,
            emit=self._emit,
        )
        allowed = max(1.0, self._left() - self._drain_reserve(level))
        run = self._prober(level, trial.go_on, allowed)
        summary = trial.close(run)
        self._probes.append(summary)
        if summary.verdict != "invalid":
            self._looks.append(run.last)
            self._learn(tuple(self._looks))
            self._history.add(level, trial.series)
        warm = min(trial.warm_until_s, trial.ended_s)
        self._activity["warm-up"] += warm
        self._activity["deciding"] += trial.ended_s - warm
        self._activity["draining"] += max(0.0, run.seconds - trial.ended_s)
        self._notes.extend(f"{level} users: {note}" for note in run.notes)
        self._emit(
            ProbeEnded(
                level,
                summary.verdict,
                summary.requests,
                summary.attainment,
                summary.attainment_low,
                summary.attainment_high,
                summary.seconds,
                "; ".join(summary.invalid_reasons),
            )
        )
        return summary.verdict

    def _frozen_control(self) -> Control | None:
        """The twin as it is now: one that learnt from the very outcomes it is to correct would flatter them."""
        if self._twin is None or self._prior.demand is None:
            return None
        return Control(self._twin, self._prior.demand, self._slo)

    def _drain_reserve(self, level: int) -> float:
        known = [p.e2e_s["p95"] * max(1.0, level / p.users) for p in self._probes if math.isfinite(p.e2e_s["p95"])]
        return min(max(known, default=0.0), 0.1 * self._seconds)

    # The answer

    def _result(self) -> Result:
        status: Status
        if self._certified >= self._max:
            status = "at_least"
        elif self._certified:
            status = "certified"
        elif self._void:
            status = "invalid"
        elif self._failed == 1:
            status = "not_met"
        else:
            status = "inconclusive"
        self._say_what_is_odd()
        return Result(
            status=status,
            certified_users=self._certified,
            at_most_users=None if self._failed is None else max(self._failed - 1, self._certified),
            confidence=self._confidence,
            limited_by=self._limiting_factor(),
            probes=tuple(self._probes),
            seconds_by_activity=dict(self._activity),
            notes=tuple(self._notes),
        )

    def _limiting_factor(self) -> str | None:
        """What breaks first beyond the certified level: the commonest factor at the lowest level above it."""
        above = [p for p in self._probes if p.users > self._certified and p.verdict != "invalid"]
        missed = [p for p in above or self._probes if any(p.broken_by.values())]
        if not missed:
            return None
        nearest = min(missed, key=lambda probe: (abs(probe.users - self._certified), -probe.requests))
        return max(nearest.broken_by, key=lambda name: nearest.broken_by[name])

    def _say_what_is_odd(self) -> None:
        valid = [p for p in self._probes if p.verdict != "invalid" and p.effective_n > 0]
        for low in valid:
            for high in valid:
                if low.users < high.users and low.attainment_high < high.attainment_low:
                    self._notes.append(
                        f"not monotone: {high.users} users did better ({high.attainment:.3f}) "
                        f"than {low.users} ({low.attainment:.3f})"
                    )
        if self._void:
            self._notes.append("the last level was void twice; what was certified before it stands")


def _guess(slots: int | None) -> float | None:
    return None if slots is None else 2.0 * slots


def posterior_of(belief: Belief, probes: tuple[ProbeSummary, ...]) -> Posterior:
    """What a belief becomes after the given probes (for reports and tests)."""
    usable = [p for p in probes if p.verdict != "invalid" and p.effective_n > 0]
    return belief.given(
        [Seen(p.users, p.attainment * p.effective_n, (1 - p.attainment) * p.effective_n) for p in usable]
    )
