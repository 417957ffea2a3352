"""A Prober over a simulated host in virtual time: what the search's accuracy and cost are measured with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from deployctl.capacity.probe import Look, ProbeRun
from deployctl.catalog.distributions import Dist
from deployctl.simulator.scenario import Scenario, Steal
from deployctl.simulator.speed import SpeedClock
from deployctl.simulator.virtual import ClosedLoop, closed_loop

STEAL_LIMIT = 0.02  # share of the processor that the host may lose in a telemetry window
TELEMETRY_S = 2.0  # seconds between two readings of /proc/stat


class VirtualProber:
    """One simulated host and everything that is asked of it; implements ``capacity.probe.Prober``.

    The host's clock goes on from probe to probe, and with it noise, drift, steal and stalls. Deterministic by
    ``seed`` and the order of the probes. Looks come each second at first and then each ``look_growth`` of the time
    that has passed, so that a long probe costs no more looks than it needs. With ``telemetry`` the steal that the
    kernel of a real host would show trips the gate; drift and noise are visible in the answers only.
    """

    def __init__(self, scenario: Scenario, seed: int = 0, *, look_growth: float = 0.02, telemetry: bool = True) -> None:
        self.scenario = scenario
        self.host_s = 0.0  # the host's clock, and so the time that all probes took
        self.requests = 0
        self.probes = 0
        self._look_growth = look_growth
        self._telemetry = telemetry
        self._seeds = np.random.SeedSequence(seed)
        self._clock = SpeedClock(scenario.server, np.random.default_rng(self._seeds.spawn(1)[0]))

    def __call__(self, users: int, go_on: Callable[[Look], bool], max_seconds: float) -> ProbeRun:
        """Hold ``users`` users until ``go_on`` says False or ``max_seconds`` are over, then drain."""
        return self._hold(self.scenario, users, go_on, max_seconds)

    def alone(self, requests: int) -> ProbeRun:
        """Let one user send ``requests`` requests (a few more at most) without think time: the baseline."""
        still = Dist(dist="constant", mean=0)
        workload = self.scenario.workload.model_copy(update={"think_s": still})
        scenario = self.scenario.model_copy(update={"workload": workload})
        return self._hold(scenario, 1, lambda look: len(look.requests) < requests, math.inf)

    def _hold(self, scenario: Scenario, users: int, go_on: Callable[[Look], bool], max_seconds: float) -> ProbeRun:
        began_s = self.host_s
        loop = closed_loop(scenario, users, self._seeds.spawn(1)[0], self._clock, began_s)
        now_s = 0.0
        while now_s < max_seconds:
            now_s = min(max(now_s + 1.0, now_s * (1 + self._look_growth)), max_seconds)
            loop.advance(now_s)
            if not go_on(self._look(loop, now_s)):
                break
        seconds = loop.drain()
        last = self._look(loop, seconds)
        self.host_s = began_s + seconds
        self.requests += len(last.requests)
        self.probes += 1
        return ProbeRun(users, seconds, last, last.invalid)

    def _look(self, loop: ClosedLoop, now_s: float) -> Look:
        start, ttft = loop.pending()
        gates = self._gates(loop.began_s, now_s)
        return Look(loop.users, now_s, loop.requests(), start, gates, ttft, loop.pending_users())

    def _gates(self, began_s: float, now_s: float) -> tuple[str, ...]:
        if not self._telemetry:
            return ()
        worst = max((_seen(steal, began_s, began_s + now_s) for steal in self.scenario.server.steal), default=0.0)
        return (f"host: CPU steal of {worst:.0%}",) if worst > STEAL_LIMIT else ()


def _seen(steal: Steal, began_s: float, now_s: float) -> float:
    """The largest steal share that one telemetry window of the probe can show of ``steal``."""
    overlap = min(steal.to_s, now_s) - max(steal.from_s, began_s)
    return steal.fraction * min(1.0, max(0.0, overlap) / TELEMETRY_S)
