"""One probe as a sequential test: look after look, decide whether the level passes, fails or is not worth more time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from deployctl.capacity.attainment import FACTORS, misses
from deployctl.capacity.control import Control
from deployctl.capacity.evidence import LEAST_CYCLES, NOTHING, Evidence, Series, Unrest, steady, weigh
from deployctl.capacity.probe import Look, ProbeRun, Requests, Slo, Verdict
from deployctl.capacity.result import ProbeSummary
from deployctl.events import Emit, ProbeMoved, discard
from deployctl.stats.quantiles import percentiles
from deployctl.stats.sequential import BETTER, Alternatives


class Trial:
    """The decision on one level. Hand :meth:`go_on` to the prober, then ask :meth:`close` for the summary.

    The level passes once the evidence against "attainment below target" reaches 1/``alpha_pass`` (an e-process: any
    number of looks is allowed), fails once the evidence for it reaches 1/``alpha_fail``. ``earlier`` are the outcomes
    of earlier visits to the level; ``control`` a twin that was fitted before this probe. ``worth_it`` is asked at each
    look whether an undecided trial shall go on; ``gate`` names what makes the probe void, if anything does (it looks
    now and then, and when told to); ``unrest`` is what it found of the host's wandering.
    """

    def __init__(
        self,
        users: int,
        slo: Slo,
        *,
        alpha_pass: float,
        alpha_fail: float,
        expected_inflation: float | None = None,
        alternatives: Alternatives = BETTER,
        earlier: Series = NOTHING,
        control: Control | None = None,
        worth_it: Callable[[Evidence, Look], bool] = lambda _evidence, _look: True,
        gate: Callable[[Look, bool], str | None] = lambda _look, _now: None,
        unrest: Callable[[], Unrest | None] = lambda: None,
        emit: Emit = discard,
    ) -> None:
        self.users = users
        self.slo = slo
        self.verdict: Verdict = "inconclusive"
        self.series = earlier
        self.evidence = weigh(earlier, users, expected_inflation, alternatives)
        self.warm_until_s = 0.0
        self.ended_s = 0.0
        self._need_pass = math.log(1.0 / alpha_pass)
        self._need_fail = math.log(1.0 / alpha_fail)
        self._expected = expected_inflation
        self._alternatives = alternatives
        self._earlier = earlier
        self._control = control
        self._worth_it = worth_it
        self._gate = gate
        self._unrest = unrest
        self._tripped: str | None = None
        self._emit = emit
        self._weighed = 0

    def go_on(self, look: Look) -> bool:
        """Weigh what there is; False ends the probe."""
        self.ended_s = look.now_s
        if look.invalid:
            self.verdict = "invalid"
            return False
        finished = len(look.requests)
        if finished < self._weighed + max(1, self._weighed // 12):
            return True
        self._weighed = finished
        series, self.warm_until_s = steady(look, self.slo, self._control)
        if len(series.missed) == 0:
            return True
        self.series = self._earlier + series
        self._tripped = self._gate(look, False)
        if self._tripped is None and self._passes(self._weigh()):
            self._tripped = self._gate(look, True)  # before a number is sold, once more
        self.evidence = found = self._weigh()
        if self._tripped is not None:
            self.verdict = "invalid"
            return False
        self._emit(ProbeMoved(self.users, found.requests, found.attainment, found.low, found.high, look.now_s))
        if self._passes(found):
            self.verdict = "pass"
        elif found.for_failing(self.slo.attainment) >= self._need_fail:
            self.verdict = "fail"
        else:
            return self._worth_it(found, look)
        return False

    def _weigh(self) -> Evidence:
        return weigh(self.series, self.users, self._expected, self._alternatives, self._unrest())

    def _passes(self, found: Evidence) -> bool:
        return found.cycles >= LEAST_CYCLES and found.for_passing(self.slo.attainment) >= self._need_pass

    def close(self, run: ProbeRun, before: Visit | None = None) -> tuple[ProbeSummary, Visit]:
        """Sum the probe up, together with the visit just ``before`` it to the same level, and say what to hand on.

        Reasons to distrust the probe outrank whatever it decided.
        """
        tripped = () if self._tripped is None else (self._tripped,)
        reasons = tuple(dict.fromkeys((*run.last.invalid, *run.invalid_reasons, *tripped)))
        if reasons:
            self.verdict = "invalid"
            self.series = self._earlier
        found = self.evidence
        own = _after(run.last.requests, self.warm_until_s)
        steady_s = max(run.last.now_s - self.warm_until_s, 1e-9)
        visit = Visit(own, steady_s, len(run.last.requests) - len(own), run.seconds)
        if before is not None:
            visit = before + visit
        kept = visit.kept
        broken = misses(kept, self.slo)
        summary = ProbeSummary(
            users=self.users,
            verdict=self.verdict,
            requests=found.requests,
            discarded=visit.discarded,
            effective_n=found.effective_n,
            attainment=found.attainment,
            attainment_low=found.low,
            attainment_high=found.high,
            ttft_s=percentiles(kept.ttft_s),
            tpot_s=percentiles(kept.tpot_s),
            e2e_s=percentiles(kept.e2e_s),
            tokens_per_s=float(kept.output_tokens[kept.ok].sum()) / visit.steady_s,
            invalid_reasons=reasons,
            seconds=visit.seconds,
            broken_by={name: int(broken[name].sum()) for name in FACTORS},
        )
        return summary, visit


@dataclass(frozen=True, eq=False)
class Visit:
    """The steady requests of a visit to a level, the seconds in which they began, the rest, and the host time."""

    kept: Requests
    steady_s: float
    discarded: int
    seconds: float

    def __add__(self, other: Visit) -> Visit:
        kept = Requests(
            *(
                np.concatenate([getattr(self.kept, field.name), getattr(other.kept, field.name)])
                for field in fields(Requests)
            )
        )
        return Visit(
            kept, self.steady_s + other.steady_s, self.discarded + other.discarded, self.seconds + other.seconds
        )


def _after(requests: Requests, start_s: float) -> Requests:
    keep = requests.start_s >= start_s
    return Requests(*(getattr(requests, field.name)[keep] for field in fields(Requests)))
