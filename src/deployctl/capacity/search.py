"""The search: probe where it pays most, keep what is proven, and say what every second was spent on."""

from __future__ import annotations

from collections import Counter

from deployctl.capacity.evidence import Evidence
from deployctl.capacity.guide import Guide, Situation
from deployctl.capacity.levels import Aim
from deployctl.capacity.probe import Look, Prober, Slo, Verdict
from deployctl.capacity.result import Budget, Prior, Result, Status
from deployctl.capacity.steadiness import cliff
from deployctl.capacity.visits import Visits
from deployctl.errors import UsageError
from deployctl.events import Emit, discard

MODE_SECONDS = {"quick": 600.0, "standard": 3600.0, "certify": 7 * 86400.0}
"""Host time of each mode where the budget names none."""

MODE_AIM = {
    "quick": Aim(tolerance=0.25, patience_s=600.0, longest_s=600.0),
    "standard": Aim(tolerance=0.08, patience_s=3600.0, longest_s=3600.0),
    "certify": Aim(tolerance=0.045, patience_s=15 * 3600.0, longest_s=8 * 3600.0),
}

_LOYALTY = 0.3  # a running level is left only for one that is worth more by this much, in tolerances and as a share
_VISITS = 3  # to a level that remained open
_LEAP = 3  # no level is tried beyond so many times the highest one that was seen
_ALPHA_KEPT = 0.4  # share of the remaining error budget that each abandoned level leaves to the next
_LEARN_REQUESTS, _LEARN_CYCLES = 30, 3.0  # of the first probe, before the twin is fitted
_IN_STEP_CYCLES = 50.0  # host and twin fall out of step: a controlled visit ends after so many cycles
_USEFUL = 0.6  # … where the control variate leaves less than this share of the variance


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
    The first cycles at a level are no part of its test, so a level that is left within them has used nothing up.
    """

    def __init__(
        self, prober: Prober, slo: Slo, prior: Prior, budget: Budget, max_users: int, confidence: float, emit: Emit
    ) -> None:
        self._slo = slo
        self._prior = prior
        self._aim = MODE_AIM[budget.mode]
        self._seconds = budget.seconds if budget.seconds is not None else MODE_SECONDS[budget.mode]
        self._spare = budget.seconds is not None
        self._max = max_users
        self._confidence = confidence
        self._guide = Guide(slo, prior, max_users, self._aim)
        self._visits = Visits(prober, slo, self._guide, self._seconds, emit)
        self._notes = self._visits.notes
        self._certified = 0
        self._failed: int | None = None  # the lowest level proven not to hold
        self._given_up: Counter[int] = Counter()
        self._alpha: dict[int, float] = {}
        self._out_of_step = False
        self._void = False

    def answer(self) -> Result:
        """Probe until nothing more is worth its time, then say what is known."""
        level: int | None = self._first_level()
        while level is not None:
            verdict = self._probe(level)
            if verdict == "invalid":
                self._void = True
                break
            if verdict == "pass":
                self._certified = max(self._certified, level)
                self._alpha.pop(level, None)
            elif not self._out_of_step:
                self._given_up[level] += 1
                if verdict == "fail":
                    self._failed = min(self._failed or level, level)
            level = self._next_level()
        return self._result()

    # Which level

    def _first_level(self) -> int:
        """Near enough to the capacity to learn from: the slots all busy, and perhaps a short queue."""
        slots, guess = self._prior.slots, self._prior.users_guess
        if slots is None:
            return max(1, min(self._max, round(0.4 * (guess or 2))))
        return max(1, min(self._max, round(1.5 * slots), max(slots, round(0.4 * guess)) if guess else slots))

    def _next_level(self) -> int | None:
        if self._visits.left_s <= 0.02 * self._seconds:
            return None
        if (found := self._guide.choose(self._situation())) is not None:
            return found[0]
        # Nobody certified and nothing promising: one user is the question that must be answered.
        if self._certified == 0:
            return 1 if self._failed != 1 and self._given_up[1] < _VISITS else None
        # The time is paid for: why not one more?
        above = self._certified + 1
        return above if self._spare and self._asks_for_proof(above) else None

    def _asks_for_proof(self, level: int) -> bool:
        """Whether ``level`` is one more than what is certified, and nothing has shown yet that it does not hold."""
        return level == self._certified + 1 <= self._max and self._failed != level and self._given_up[level] < _VISITS

    def _worth_it(self, found: Evidence, look: Look) -> bool:
        """Whether the running trial is still the best use of the next second."""
        first = not self._visits.probes
        if first and self._guide.twin is None:
            if found.requests < _LEARN_REQUESTS or found.cycles < _LEARN_CYCLES:
                return found.for_failing(self._slo.attainment) < 2.0 or found.requests < _LEARN_REQUESTS / 2
            self._guide.learn((look,))
            if self._guide.twin is not None:
                # What follows is held against the twin, which has to start when the users do.
                self._out_of_step = True
                return False
        self._out_of_step = self._falls_out_of_step(found, look)
        if self._out_of_step or look.now_s > self._aim.longest_s:
            return False
        if found.users == 1 and self._certified == 0 and found.attainment < self._slo.attainment + 0.02:
            return True  # a no needs proof as much as a yes
        if found.cycles < 2.0 and found.for_failing(self._slo.attainment) < 2.0:
            return True
        chosen = self._guide.choose(self._situation(), found)
        if chosen is None:
            return self._spare and self._asks_for_proof(found.users)
        best, plan = chosen
        own, most = plan.at(found.users), plan.at(best)
        return found.users == best or own >= most - _LOYALTY or own >= (1.0 - _LOYALTY) * most

    def _falls_out_of_step(self, found: Evidence, look: Look) -> bool:
        long = found.cycle_s > 0 and look.now_s / found.cycle_s > _IN_STEP_CYCLES
        return long and found.controlled and found.left < _USEFUL

    def _situation(self) -> Situation:
        return Situation(
            self._certified,
            self._ceiling(),
            self._visits.left_s,
            self._spare,
            self._alpha_for,
            frozenset(level for level, visits in self._given_up.items() if visits >= _VISITS),
        )

    def _ceiling(self) -> int:
        """The lowest level not to be tried: proven not to hold, beyond the maximum, or too far beyond what was seen.

        A host is never thrown from a handful of users to hundreds on the word of a model.
        """
        seen = max(self._guide.history.levels, default=self._prior.slots or 1)
        return min(self._max + 1, self._failed or self._max + 1, _LEAP * seen + 1)

    def _alpha_for(self, level: int) -> float:
        if level in self._alpha:
            return self._alpha[level]
        return (1.0 - self._confidence) * (1.0 - _ALPHA_KEPT) * _ALPHA_KEPT ** len(self._alpha)

    # One probe

    def _probe(self, level: int) -> Verdict:
        self._out_of_step = False
        alpha = self._alpha_for(level)
        alpha_fail = 1.0 - self._confidence if level == 1 else alpha
        verdict, evidence = self._visits.probe(level, alpha, alpha_fail, self._worth_it)
        if verdict in ("fail", "inconclusive") and evidence.committed:
            self._alpha.setdefault(level, alpha)
        return verdict

    # The answer

    def _result(self) -> Result:
        status: Status
        certified = self._certified
        if self._void and self._visits.drifted:
            # What passed before the host changed was another host's number.
            self._notes.append(f"the host did not keep its speed; {certified} users had passed until then")
            self._certified = 0
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
            limited_by=self._visits.limiting_factor(self._certified),
            probes=tuple(self._visits.probes),
            seconds_by_activity=dict(self._visits.activity),
            notes=tuple(self._notes),
        )

    def _say_what_is_odd(self) -> None:
        valid = [p for p in self._visits.probes if p.verdict != "invalid" and p.effective_n > 0]
        for low in valid:
            for high in valid:
                if low.users < high.users and low.attainment_high < high.attainment_low:
                    self._notes.append(
                        f"not monotone: {high.users} users did better ({high.attainment:.3f}) "
                        f"than {low.users} ({low.attainment:.3f})"
                    )
        if self._guide.twin is not None and (found := cliff(self._guide.twin, self._visits.wander)) is not None:
            self._notes.append(found)
        if self._void:
            self._notes.append("the last level was void twice; what was certified before it stands")
