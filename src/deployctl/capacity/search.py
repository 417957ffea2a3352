"""The search: which level to probe next, what each verdict proves, and when to stop."""

from __future__ import annotations

import math

from deployctl.capacity.probe import Prober, Slo
from deployctl.capacity.result import Budget, Prior, ProbeSummary, Result, Status
from deployctl.capacity.trial import Trial
from deployctl.errors import UsageError
from deployctl.events import Emit, ProbeEnded, Warned, discard

MODE_SECONDS = {"quick": 600.0, "standard": 3600.0, "certify": 7 * 86400.0}
"""Host time of each mode where the budget names none."""

MODE_PATIENCE = {"quick": 300.0, "standard": 3000.0, "certify": 30000.0}
"""Further requests that one level is worth before it is left undecided."""


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
    run = _Search(prober, slo, prior or Prior(), budget or Budget(), max_users, confidence, emit)
    return run.answer()


class _Search:
    """Doubling from the guess, then bisection; evidence is spent so that the whole search keeps its confidence."""

    def __init__(
        self, prober: Prober, slo: Slo, prior: Prior, budget: Budget, max_users: int, confidence: float, emit: Emit
    ) -> None:
        self._prober = prober
        self._slo = slo
        self._prior = prior
        self._mode = budget.mode
        self._seconds = budget.seconds if budget.seconds is not None else MODE_SECONDS[budget.mode]
        self._max = max_users
        self._confidence = confidence
        self._emit = emit
        self._probes: list[ProbeSummary] = []
        self._activity = {"warm-up": 0.0, "deciding": 0.0, "draining": 0.0}
        self._notes: list[str] = []
        self._certified = 0
        self._failed: int | None = None  # the lowest level proven not to hold
        self._ceiling = max_users + 1  # the lowest level not worth trying any more
        self._steps_down = 0
        self._stopped: str | None = None

    def answer(self) -> Result:
        level: int | None = self._first_level()
        while level is not None:
            verdict = self._probe(level)
            if verdict == "invalid":
                self._emit(Warned(f"the probe at {level} users is void; it is repeated once"))
                verdict = self._probe(level)
            if verdict is None:
                break
            if verdict == "invalid":
                self._stopped = "invalid"
                break
            if verdict == "pass":
                self._certified = level
            else:
                self._ceiling = level
                self._steps_down += 1
                if verdict == "fail":
                    self._failed = level
            level = self._next_level()
        return self._result()

    def _first_level(self) -> int:
        guess = self._prior.users_guess // 2 if self._prior.users_guess else self._prior.slots or 1
        return max(1, min(self._max, guess))

    def _next_level(self) -> int | None:
        if self._ceiling > self._max:
            if self._certified >= self._max:
                return None
            return min(self._max, max(2 * self._certified, 1))
        if self._ceiling - self._certified <= 1:
            return None
        if self._mode == "quick" and self._certified and self._ceiling <= 1.25 * self._certified:
            return None
        return (self._certified + self._ceiling) // 2

    def _left(self) -> float:
        return self._seconds - math.fsum(probe.seconds for probe in self._probes)

    def _alpha(self) -> float:
        # Going up costs nothing: levels above the capacity are reached only by passing, falsely, the first of them.
        # Each step down opens a new chance to err, so it draws on its own share; the shares sum to alpha.
        return (1.0 - self._confidence) * 0.6 * 0.4**self._steps_down

    def _probe(self, level: int) -> str | None:
        """Run one probe; its verdict, or None where no time is left for one."""
        left = self._left() - self._drain_reserve()
        if left < 0.05 * self._seconds or left <= 0:
            return None
        allowed = left if self._certified or level == 1 else left * 0.6
        trial = Trial(
            level,
            self._slo,
            alpha_pass=self._alpha(),
            alpha_fail=self._alpha(),
            slots=self._prior.slots,
            patience=MODE_PATIENCE[self._mode] if level > 1 else math.inf,
            emit=self._emit,
        )
        run = self._prober(level, trial.go_on, allowed)
        summary = trial.close(run)
        self._probes.append(summary)
        warm = min(trial.evidence.warm_until_s, trial.decided_at_s)
        self._activity["warm-up"] += warm
        self._activity["deciding"] += max(0.0, trial.decided_at_s - warm)
        self._activity["draining"] += max(0.0, run.seconds - max(warm, trial.decided_at_s))
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

    def _drain_reserve(self) -> float:
        known = [p.e2e_s["p95"] for p in self._probes if math.isfinite(p.e2e_s["p95"])]
        return min(max(known, default=0.0), 0.1 * self._seconds)

    def _result(self) -> Result:
        status: Status
        if self._certified >= self._max:
            status = "at_least"
        elif self._certified:
            status = "certified"
        elif self._stopped == "invalid":
            status = "invalid"
        elif self._failed == 1:
            status = "not_met"
        else:
            status = "inconclusive"
        self._say_what_is_odd()
        return Result(
            status=status,
            certified_users=self._certified,
            at_most_users=None if self._failed is None else self._failed - 1,
            confidence=self._confidence,
            limited_by=self._limiting_factor(),
            probes=tuple(self._probes),
            seconds_by_activity=dict(self._activity),
            notes=tuple(self._notes),
        )

    def _limiting_factor(self) -> str | None:
        """What breaks first beyond the certified level: the commonest factor at the lowest level above it."""
        above = [
            p
            for p in self._probes
            if p.users > self._certified and p.verdict != "invalid" and any(p.broken_by.values())
        ]
        if not above:
            return None
        nearest = min(above, key=lambda probe: probe.users)
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
        if self._stopped == "invalid":
            self._notes.append("the last level was void twice; what was certified before it stands")
