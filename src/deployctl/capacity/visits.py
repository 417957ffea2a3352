"""The probes of one search, one after the other: what they took, what they showed, and whether the host kept still."""

from __future__ import annotations

import math
from collections.abc import Callable

from deployctl.capacity.evidence import Evidence
from deployctl.capacity.guide import Guide
from deployctl.capacity.probe import Look, Prober, ProbeRun, Slo, Verdict
from deployctl.capacity.result import ProbeSummary
from deployctl.capacity.steadiness import Pace
from deployctl.capacity.trial import Trial, Visit
from deployctl.events import Emit, ProbeEnded, Warned
from deployctl.stats.wander import STILL

_CHECKED_AGAIN = 1.33  # the host's speed is looked at whenever so many times the requests have been seen
_DRAIN_SHARE = 0.1  # of the budget, at most, is kept for letting the host finish


class Visits:
    """Probes levels, hands every outcome to the ``guide`` and keeps the account of the host's time.

    ``seconds``: the budget. ``activity`` sums to the time used.
    """

    def __init__(self, prober: Prober, slo: Slo, guide: Guide, seconds: float, emit: Emit) -> None:
        self.probes: list[ProbeSummary] = []
        self.notes: list[str] = []
        self.activity = {"warm-up": 0.0, "deciding": 0.0, "draining": 0.0}
        self.drifted = False  # a probe was void because the host did not keep its speed
        self._prober = prober
        self._slo = slo
        self._guide = guide
        self._seconds = seconds
        self._emit = emit
        self._looks: list[Look] = []
        self._witnessed: list[Look] = []  # void probes too
        self._visit: Visit | None = None  # the last one, if it was valid
        self.wander = STILL  # how the host's speed wanders, as far as is known
        self._checked = 0  # requests at the last check for drift

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._seconds - math.fsum(probe.seconds for probe in self.probes)

    def probe(
        self, level: int, alpha_pass: float, alpha_fail: float, worth_it: Callable[[Evidence, Look], bool]
    ) -> tuple[Verdict, Evidence]:
        """Hold ``level`` users until it is decided, not ``worth_it`` or void; a void probe is repeated once."""
        found = self._once(level, alpha_pass, alpha_fail, worth_it)
        if found[0] == "invalid" and self.left_s > 0:
            self._emit(Warned(f"the probe at {level} users is void; it is repeated once"))
            found = self._once(level, alpha_pass, alpha_fail, worth_it)
        return found

    def _once(
        self, level: int, alpha_pass: float, alpha_fail: float, worth_it: Callable[[Evidence, Look], bool]
    ) -> tuple[Verdict, Evidence]:
        trial = Trial(
            level,
            self._slo,
            alpha_pass=alpha_pass,
            alpha_fail=alpha_fail,
            expected_inflation=self._guide.expected_inflation(level),
            alternatives=self._guide.alternatives(level),
            earlier=self._guide.history.series(level),
            control=self._guide.control(),
            worth_it=worth_it,
            gate=self._unsteady,
            unrest=lambda: self._guide.unrest(level, self.wander),
            emit=self._emit,
        )
        allowed = max(1.0, self.left_s - self._drain_reserve(level))
        run = self._prober(level, trial.go_on, allowed)
        summary = self._summed(trial, run)
        self._witnessed.append(run.last)
        self.drifted |= any(reason.startswith("drift") for reason in summary.invalid_reasons)
        if summary.verdict != "invalid":
            self._looks.append(run.last)
            self._guide.learn(tuple(self._looks))
            self._guide.history.add(trial.series, trial.evidence)
        warm = min(trial.warm_until_s, trial.ended_s)
        self.activity["warm-up"] += warm
        self.activity["deciding"] += trial.ended_s - warm
        self.activity["draining"] += max(0.0, run.seconds - trial.ended_s)
        self.notes.extend(f"{level} users: {note}" for note in run.notes)
        self._emit(
            ProbeEnded(
                level,
                summary.verdict,
                summary.requests,
                summary.attainment,
                summary.attainment_low,
                summary.attainment_high,
                run.seconds,
                "; ".join(summary.invalid_reasons),
            )
        )
        return summary.verdict, trial.evidence

    def _summed(self, trial: Trial, run: ProbeRun) -> ProbeSummary:
        """The probe's summary, kept; one with the visit just before it to the same level, where both are valid.

        A level is left for a moment so that its users start anew, in step with the twin: for whoever reads, one probe.
        """
        before = self._visit if self.probes and self.probes[-1].users == run.users else None
        summary, visit = trial.close(run, before)
        if summary.verdict == "invalid":
            summary, _ = trial.close(run)
            before = self._visit = None
        else:
            self._visit = visit
        self.probes = [*(self.probes if before is None else self.probes[:-1]), summary]
        return summary

    def _unsteady(self, look: Look, now: bool) -> str | None:
        seen = sum(len(past.requests) for past in self._witnessed) + len(look.requests)
        if self._guide.twin is None or (seen < _CHECKED_AGAIN * self._checked and not now):
            return None
        self._checked = seen
        pace = Pace.of((*self._witnessed, look), self._guide.twin)
        self.wander = pace.wander()
        return pace.drift()

    def _drain_reserve(self, level: int) -> float:
        known = [p.e2e_s["p95"] * max(1.0, level / p.users) for p in self.probes if math.isfinite(p.e2e_s["p95"])]
        return min(max(known, default=0.0), _DRAIN_SHARE * self._seconds)

    def limiting_factor(self, users: int) -> str | None:
        """What breaks first beyond ``users``: the commonest factor at the nearest level above, if any, that missed."""
        above = [p for p in self.probes if p.users > users and p.verdict != "invalid"]
        missed = [p for p in above or self.probes if any(p.broken_by.values())]
        if not missed:
            return None
        nearest = min(missed, key=lambda probe: (abs(probe.users - users), -probe.requests))
        return max(nearest.broken_by, key=lambda name: nearest.broken_by[name])
