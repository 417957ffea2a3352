"""Yes or no: does the host hold so many users? The question of a plan that is sold with a number."""

from __future__ import annotations

from dataclasses import dataclass

from deployctl.capacity.evidence import Evidence
from deployctl.capacity.guide import Guide
from deployctl.capacity.levels import Aim
from deployctl.capacity.probe import Look, Prober, Slo, Verdict
from deployctl.capacity.result import Prior, ProbeSummary
from deployctl.capacity.visits import Visits
from deployctl.errors import UsageError
from deployctl.events import Emit, discard

_AIM = Aim(tolerance=0.05, patience_s=3600.0, longest_s=3600.0)
_LEARN_REQUESTS, _LEARN_CYCLES = 30, 3.0  # before a twin is fitted and the users start again in step with it
_SOON = 0.5  # share of the evidence that is needed: a visit that has so much is not left for a twin
_IN_STEP_CYCLES = 50.0  # host and twin fall out of step; the users start again after so many cycles
_USEFUL = 0.6  # … where the twin explains enough for that to be worth while


@dataclass(frozen=True)
class Held:
    """The answer. ``pass``: at ``users`` the attainment is at least the SLO's, ``fail``: it is less, each wrong with a
    probability of at most 1 - ``confidence``; ``inconclusive``: the budget did not suffice; ``invalid``: a void probe.

    ``attainment`` with its 95 % interval and ``effective_n`` are of all valid visits. ``limited_by``: what most of the
    misses break. ``seconds_by_activity`` sums to the host time used.
    """

    verdict: Verdict
    users: int
    confidence: float
    attainment: float
    attainment_low: float
    attainment_high: float
    effective_n: float
    limited_by: str | None
    probes: tuple[ProbeSummary, ...]
    seconds_by_activity: dict[str, float]
    notes: tuple[str, ...] = ()


def holds(
    prober: Prober,
    slo: Slo,
    users: int,
    prior: Prior | None = None,
    *,
    budget_s: float = 3600.0,
    confidence: float = 0.95,
    emit: Emit = discard,
) -> Held:
    """Decide whether ``users`` users keep the SLO, within ``budget_s`` seconds of host time.

    The level is watched from the first second. After a few cycles a twin of the host is fitted, and the users start
    again in step with it, so that the luck of what they asked can be taken out (``control``). Raises UsageError for an
    SLO or a number that no test can answer.
    """
    if not 0.0 < slo.attainment < 1.0:
        raise UsageError(f"an SLO's attainment must lie between 0 and 1, not {slo.attainment}", hint="such as 0.95")
    if users < 1 or not 0.5 < confidence < 1.0 or budget_s <= 0:
        raise UsageError("the question needs at least one user, a confidence between 0.5 and 1, and some time")
    return _Question(prober, slo, users, prior or Prior(), budget_s, confidence, emit).answer()


class _Question:
    def __init__(
        self, prober: Prober, slo: Slo, users: int, prior: Prior, budget_s: float, confidence: float, emit: Emit
    ) -> None:
        self._slo = slo
        self._users = users
        self._confidence = confidence
        self._budget_s = budget_s
        self._guide = Guide(slo, prior, max(4 * users, 64), _AIM)
        self._controllable = prior.demand is not None
        self._visits = Visits(prober, slo, self._guide, budget_s, emit)

    def answer(self) -> Held:
        """Visit the level until it is decided, void or out of time."""
        alpha = 1.0 - self._confidence
        verdict, found = self._visits.probe(self._users, alpha, alpha, self._worth_it)
        while verdict == "inconclusive" and self._visits.left_s > 0.05 * self._budget_s:
            verdict, found = self._visits.probe(self._users, alpha, alpha, self._worth_it)
        if verdict == "invalid":
            found = self._guide.history.evidence(self._users)
        return Held(
            verdict=verdict,
            users=self._users,
            confidence=self._confidence,
            attainment=found.attainment,
            attainment_low=found.low,
            attainment_high=found.high,
            effective_n=found.effective_n,
            limited_by=self._visits.limiting_factor(self._users - 1),
            probes=tuple(self._visits.probes),
            seconds_by_activity=dict(self._visits.activity),
            notes=tuple(self._visits.notes),
        )

    def _worth_it(self, found: Evidence, look: Look) -> bool:
        """Whether to go on with this visit; the next one starts in step with a twin."""
        if not self._controllable:
            return True
        if self._visits.probes:
            long = found.cycle_s > 0 and look.now_s / found.cycle_s > _IN_STEP_CYCLES
            return not (long and found.controlled and found.left < _USEFUL)
        if found.requests < _LEARN_REQUESTS or found.cycles < _LEARN_CYCLES:
            return True
        target = self._slo.attainment
        gathered = max(found.for_passing(target), found.for_failing(target))
        return gathered > _SOON * self._need or self._guide.twin is not None or not self._learnt(look)

    def _learnt(self, look: Look) -> bool:
        self._guide.learn((look,))
        return self._guide.twin is not None

    @property
    def _need(self) -> float:
        from math import log

        return log(1.0 / (1.0 - self._confidence))
