"""One probe as a sequential test: look after look, decide whether the level passes, fails or is not worth more time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deployctl.capacity.attainment import FACTORS, Judged, judge, misses
from deployctl.capacity.probe import Look, ProbeRun, Requests, Slo, Verdict
from deployctl.capacity.result import ProbeSummary
from deployctl.events import Emit, ProbeMoved, discard
from deployctl.stats.batches import shrunk_inflation
from deployctl.stats.binomial import clopper_pearson
from deployctl.stats.quantiles import percentiles
from deployctl.stats.sequential import log_e_above, log_e_below
from deployctl.stats.warmup import mser5

WARM_CYCLES = 1.5
"""Mean cycles (think + answer) of a user that are always discarded after a level change."""


@dataclass(frozen=True)
class Evidence:
    """The steady part of a probe in figures; ``effective_n`` is what its ``requests`` are worth if independent."""

    requests: int
    attainment: float
    effective_n: float
    low: float
    high: float
    warm_until_s: float

    @property
    def hits(self) -> float:
        """Effective hits."""
        return self.attainment * self.effective_n

    @property
    def misses(self) -> float:
        """Effective misses."""
        return (1.0 - self.attainment) * self.effective_n


def expected_inflation(users: int, slots: int | None = None) -> float:
    """Variance inflation of the attainment before the data say: one user waits for nobody, few wait seldom."""
    each = 0.2 if slots is not None and users <= slots else 0.5
    return min(3.0, 1.0 + each * (users - 1))


def weigh(look: Look, slo: Slo, slots: int | None = None) -> Evidence:
    """Discard the warm-up and the undecidable tail of a look, and say what the rest is worth."""
    judged = judge(look, slo)
    warm_until = _steady_from(look, judged)
    steady = judged.since(warm_until)
    count = len(steady)
    if count == 0:
        return Evidence(0, float("nan"), 0.0, 0.0, 1.0, warm_until)
    series = steady.met.astype(np.float64)
    size = max(2 * look.users, 5, count // 30)
    effective = count / shrunk_inflation(series, size, expected_inflation(look.users, slots))
    share = float(series.mean())
    low, high = clopper_pearson(share * effective, effective)
    return Evidence(count, share, effective, low, high, warm_until)


def _steady_from(look: Look, judged: Judged) -> float:
    starts = len(look.requests) + len(look.pending_start_s)
    if starts == 0:
        return 0.0
    cycle = look.users * look.now_s / starts
    least = WARM_CYCLES * cycle
    order = np.argsort(look.requests.start_s, kind="stable")
    start = look.requests.start_s[order]
    order = order[start < judged.horizon_s]
    e2e = look.requests.e2e_s[order]
    if len(e2e) == 0 or not np.isfinite(e2e).any():
        return least
    cut = mser5(np.minimum(e2e, np.max(e2e[np.isfinite(e2e)])), most=0.25)
    return max(least, float(look.requests.start_s[order[cut]]) if cut else 0.0)


class Trial:
    """The decision on one level. Hand :meth:`go_on` to the prober, then ask :meth:`close` for the summary.

    The level passes once the evidence against "attainment below target" reaches 1/``alpha_pass`` (an e-process: any
    number of looks is allowed), fails once the evidence for it reaches 1/``alpha_fail``. A trial whose decision would
    take more than ``patience`` further requests stops undecided.
    """

    def __init__(
        self,
        users: int,
        slo: Slo,
        *,
        alpha_pass: float,
        alpha_fail: float,
        slots: int | None = None,
        patience: float = math.inf,
        emit: Emit = discard,
    ) -> None:
        self.users = users
        self.slo = slo
        self.verdict: Verdict = "inconclusive"
        self.evidence = Evidence(0, float("nan"), 0.0, 0.0, 1.0, 0.0)
        self.decided_at_s = 0.0
        self._need_pass = math.log(1.0 / alpha_pass)
        self._need_fail = math.log(1.0 / alpha_fail)
        self._patience = patience
        self._slots = slots
        self._emit = emit
        self._weighed = -1

    def go_on(self, look: Look) -> bool:
        """Weigh what there is; False ends the probe."""
        self.decided_at_s = look.now_s
        if look.invalid:
            self.verdict = "invalid"
            return False
        finished = len(look.requests)
        if finished < self._weighed + max(1, self._weighed // 20):
            return True
        self._weighed = finished
        self.evidence = found = weigh(look, self.slo, self._slots)
        if found.requests == 0:
            return True
        self._emit(ProbeMoved(self.users, found.requests, found.attainment, found.low, found.high, look.now_s))
        target = self.slo.attainment
        if log_e_above(found.hits, found.misses, target) >= self._need_pass:
            self.verdict = "pass"
        elif log_e_below(found.hits, found.misses, target) >= self._need_fail:
            self.verdict = "fail"
        elif found.effective_n >= 60 and self._requests_to_decide(found) > self._patience:
            return False
        return self.verdict == "inconclusive"

    def _requests_to_decide(self, found: Evidence) -> float:
        gap = max(abs(found.attainment - self.slo.attainment), 1e-6)
        share = min(max(found.attainment, 1e-3), 1 - 1e-3)
        effective = 2 * share * (1 - share) * self._need_pass / gap**2
        return (effective - found.effective_n) * found.requests / found.effective_n

    def close(self, run: ProbeRun) -> ProbeSummary:
        """Sum the probe up. Reasons to distrust it outrank whatever it decided."""
        reasons = tuple(dict.fromkeys((*run.last.invalid, *run.invalid_reasons)))
        if reasons:
            self.verdict = "invalid"
        found = self.evidence
        steady = _after(run.last.requests, found.warm_until_s)
        seconds = max(run.last.now_s - found.warm_until_s, 1e-9)
        good = steady.ok
        return ProbeSummary(
            users=self.users,
            verdict=self.verdict,
            requests=len(run.last.requests),
            effective_n=found.effective_n,
            attainment=found.attainment,
            attainment_low=found.low,
            attainment_high=found.high,
            ttft_s=percentiles(steady.ttft_s),
            tpot_s=percentiles(steady.tpot_s),
            e2e_s=percentiles(steady.e2e_s),
            tokens_per_s=float(steady.output_tokens[good].sum()) / seconds,
            invalid_reasons=reasons,
            seconds=run.seconds,
            broken_by={name: int(misses(steady, self.slo)[name].sum()) for name in FACTORS},
        )


def _after(requests: Requests, start_s: float) -> Requests:
    keep = requests.start_s >= start_s
    return Requests(
        requests.user[keep],
        requests.start_s[keep],
        requests.ttft_s[keep],
        requests.tpot_s[keep],
        requests.e2e_s[keep],
        requests.ok[keep],
        requests.prompt_tokens[keep],
        requests.output_tokens[keep],
    )
