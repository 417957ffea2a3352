"""The machine's own clock: how much work a server of changing speed can have done by a given second.

Everything that slows the whole machine alike (neighbours, steal, stalls, drift) multiplies all rates by one factor
s(t). Work W(t), the integral of s from 0 to t, is therefore a clock in which the server always runs at full speed:
the queue model lives in W, and only think times and latencies are taken back to seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from deployctl.simulator.scenario import Server

_BLOCK = 1024  # whole seconds by which the tables grow


class SpeedClock:
    """Seconds to work and back, for one server. Deterministic by ``rng``; the tables grow as they are asked.

    Within a second the drift is taken at its middle (it is linear, so the second's work is exact).
    """

    def __init__(self, server: Server, rng: np.random.Generator) -> None:
        self._server = server
        self._rng = rng
        self._cuts = sorted(
            {edge for steal in server.steal for edge in (steal.from_s, steal.to_s)}
            | {edge for stall in server.stalls for edge in (stall.at_s, stall.at_s + stall.for_s)}
        )
        self._each_second = server.speed_noise is not None or server.drift_per_hour != 0
        self._state: float | None = None  # X of the noise's last second
        self._times: list[float] = [0.0]
        self._work: list[float] = [0.0]
        self._speeds: list[float] = []  # of the stretch that begins at the same index
        self._grow()

    @property
    def constant(self) -> bool:
        """Whether the speed is 1 for ever, so that seconds are work."""
        return not self._each_second and not self._cuts

    def to_work(self, seconds: float) -> float:
        """Return the work that can have been done by ``seconds``."""
        while seconds > self._times[-1]:
            self._grow()
        index = bisect_right(self._times, seconds) - 1
        if index >= len(self._speeds):
            return self._work[index]
        return self._work[index] + (seconds - self._times[index]) * self._speeds[index]

    def to_seconds(self, work: float) -> float:
        """Return the first second by which ``work`` can have been done."""
        while work > self._work[-1]:
            self._grow()
        index = bisect_left(self._work, work)
        if index == 0:
            return 0.0
        return self._times[index - 1] + (work - self._work[index - 1]) / self._speeds[index - 1]

    def to_seconds_array(self, work: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``to_seconds`` of every element; same shape."""
        if work.size == 0 or self.constant:
            return work
        while float(work.max()) > self._work[-1]:
            self._grow()
        table = np.asarray(self._work)
        index = np.maximum(np.searchsorted(table, work, side="left"), 1) - 1
        times, speeds = np.asarray(self._times), np.asarray(self._speeds)
        seconds: NDArray[np.float64] = times[index] + np.maximum(work - table[index], 0.0) / np.where(
            speeds[index] > 0, speeds[index], 1.0
        )
        return seconds

    def _grow(self) -> None:
        """Append one block of stretches of constant speed."""
        begin = self._times[-1]
        if not self._each_second:
            # A sum of finite stretches, then one long one: doubling keeps the table tiny for ever.
            ahead = [cut for cut in self._cuts if cut > begin]
            self._append(begin, ahead[0] if ahead else max(2 * begin, 1e6))
            return
        draws = self._noise(_BLOCK)
        for second in range(_BLOCK):
            low = begin + second
            drift = max(0.1, 1 - self._server.drift_per_hour * (low + 0.5) / 3600)
            edges = [low, *(cut for cut in self._cuts if low < cut < low + 1), low + 1]
            for left, right in pairwise(edges):
                self._append(left, right, drift * draws[second])

    def _append(self, left: float, right: float, factor: float = 1.0) -> None:
        speed = factor * self._events((left + right) / 2)
        self._speeds.append(speed)
        self._times.append(right)
        self._work.append(self._work[-1] + (right - left) * speed)

    def _events(self, middle: float) -> float:
        server = self._server
        if any(stall.at_s <= middle < stall.at_s + stall.for_s for stall in server.stalls):
            return 0.0
        return math.prod(1 - steal.fraction for steal in server.steal if steal.from_s <= middle < steal.to_s)

    def _noise(self, count: int) -> list[float]:
        """Draw exp(X - cv²/2) for the next ``count`` seconds, X a stationary AR(1)."""
        noise = self._server.speed_noise
        if noise is None:
            return [1.0] * count
        coefficient = math.exp(-1 / noise.tau_s)
        steps = self._rng.normal(0.0, noise.cv * math.sqrt(1 - coefficient**2), count)
        state = float(self._rng.normal(0.0, noise.cv)) if self._state is None else self._state
        factors = []
        for index, innovation in enumerate(steps.tolist()):
            if index or self._state is not None:
                state = coefficient * state + innovation
            factors.append(math.exp(state - noise.cv**2 / 2))
        self._state = state
        return factors
