"""The machine's own clock: how much work a server of changing speed can have done by a given second.

Everything that slows the whole machine alike (neighbours, steal, stalls, drift) multiplies all rates by one factor
s(t). Work W(t), the integral of s from 0 to t, is therefore a clock in which the server always runs at full speed:
the queue model lives in W, and only think times and latencies are taken back to seconds.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right

import numpy as np
from numpy.typing import NDArray

from deployctl.simulator.scenario import Server, SpeedNoise

_BLOCK = 4096  # whole seconds by which the tables grow
_SOON = 64
Floats = NDArray[np.float64]


class SpeedClock:
    """Seconds to work and back, for one server. Deterministic by ``rng``; the tables grow as they are asked.

    They take 24 bytes per simulated second where the speed changes each second, and almost nothing elsewhere.
    Within a second the drift is taken at its middle (it is linear, so the second's work is exact).
    """

    def __init__(self, server: Server, rng: np.random.Generator) -> None:
        self._server = server
        self._noise = None if server.speed_noise is None else _Noise(server.speed_noise, rng)
        self._cuts = np.unique(
            [edge for steal in server.steal for edge in (steal.from_s, steal.to_s)]
            + [edge for stall in server.stalls for edge in (stall.at_s, stall.at_s + stall.for_s)]
        ).astype(np.float64)
        self._each_second = self._noise is not None or server.drift_per_hour != 0
        self.constant = not self._each_second and not self._cuts.size  # the speed is 1 for ever: seconds are work
        self.whole = self._each_second and not self._cuts.size  # stretch i is second i
        self._last = 0  # where to_seconds found its answer: it is mostly asked for what comes soon after
        self._times = array("d", [0.0])
        self._work = array("d", [0.0])
        self._speeds = array("d")  # of the stretch that begins at the same index
        self.grow()

    def to_work(self, seconds: float) -> float:
        """Return the work that can have been done by ``seconds``."""
        if self.constant:
            return seconds
        while seconds >= self._times[-1]:
            self.grow()
        index = int(seconds) if self.whole else bisect_right(self._times, seconds) - 1
        return self._work[index] + (seconds - self._times[index]) * self._speeds[index]

    def to_seconds(self, work: float) -> float:
        """Return the first second by which ``work`` can have been done."""
        if self.constant:
            return work
        while work > self._work[-1]:
            self.grow()
        low, high = self._last, min(self._last + _SOON, len(self._work))
        if self._work[low] < work <= self._work[high - 1]:
            index = bisect_left(self._work, work, low, high)
        else:
            index = bisect_left(self._work, work)
            if index == 0:
                return 0.0
        self._last = index - 1
        return self._times[index - 1] + (work - self._work[index - 1]) / self._speeds[index - 1]

    def to_seconds_array(self, work: Floats) -> Floats:
        """Return ``to_seconds`` of every element; same shape. NaN and infinity stay what they are."""
        if self.constant:
            return work
        seconds = work.copy()
        finite = np.isfinite(work)
        if finite.any():
            asked = work[finite]
            while float(asked.max()) > self._work[-1]:
                self.grow()
            # Views, gone before the tables grow again: copies would cost more than the search in a long run.
            table = np.frombuffer(self._work)
            index = np.maximum(np.searchsorted(table, asked, side="left"), 1) - 1
            speeds = np.frombuffer(self._speeds)[index]
            seconds[finite] = np.frombuffer(self._times)[index] + (asked - table[index]) / np.where(
                speeds > 0, speeds, 1.0
            )
        return seconds

    def tables(self) -> tuple[Floats, Floats, Floats]:
        """Return seconds and work at the edges, and the speed in between: views, to be let go of before it grows."""
        return np.frombuffer(self._times), np.frombuffer(self._work), np.frombuffer(self._speeds)

    def grow(self) -> None:
        """Append one block of stretches of constant speed."""
        begin = self._times[-1]
        ahead = self._cuts[self._cuts > begin]
        if self._each_second:
            end = begin + _BLOCK
            edges = np.arange(begin, end + 0.5)
            if ahead.size and ahead[0] < end:
                edges = np.union1d(edges, ahead[ahead < end])
        else:
            # Finite stretches up to the last cut, then ever longer ones: the table stays tiny for ever.
            edges = np.array([begin, ahead[0] if ahead.size else max(2 * begin, 1e6)])
        middles = (edges[:-1] + edges[1:]) / 2
        speeds = self._drift(middles) * self._events(middles)
        if self._noise is not None:
            speeds *= self._noise.draw(_BLOCK)[(middles - begin).astype(np.int64)]
        work = np.cumsum(np.diff(edges) * speeds) + self._work[-1]
        self._times.frombytes(edges[1:].tobytes())
        self._work.frombytes(work.tobytes())
        self._speeds.frombytes(speeds.tobytes())

    def _drift(self, seconds: Floats) -> Floats:
        if self._server.drift_per_hour == 0:
            return np.ones_like(seconds)
        return np.maximum(0.1, 1 - self._server.drift_per_hour * (np.floor(seconds) + 0.5) / 3600)

    def _events(self, seconds: Floats) -> Floats:
        factor = np.ones_like(seconds)
        for steal in self._server.steal:
            factor[(seconds >= steal.from_s) & (seconds < steal.to_s)] *= 1 - steal.fraction
        for stall in self._server.stalls:
            factor[(seconds >= stall.at_s) & (seconds < stall.at_s + stall.for_s)] = 0.0
        return factor


class _Noise:
    """exp(X - cv²/2) for one second after another, X a stationary AR(1)."""

    def __init__(self, spec: SpeedNoise, rng: np.random.Generator) -> None:
        self._cv = spec.cv
        self._coefficient = math.exp(-1 / spec.tau_s)
        # Powers of the coefficient as far as a double holds their inverse with ease (e^300).
        self._powers = self._coefficient ** np.arange(max(1, min(_BLOCK, int(300 * spec.tau_s))))
        self._rng = rng
        self._state = float(rng.normal(0.0, spec.cv))  # the second before the first; stationary from the beginning

    def draw(self, count: int) -> Floats:
        """Return the factors of the next ``count`` seconds."""
        steps = self._rng.normal(0.0, self._cv * math.sqrt(1 - self._coefficient**2), count)
        states = np.empty(count)
        for begin in range(0, count, len(self._powers)):
            innovations = steps[begin : begin + len(self._powers)]
            powers = self._powers[: len(innovations)]
            # x[k] = a·x[k-1] + e[k], unrolled: x[k] = a^k·(a·x[-1] + sum of e[i]·a^-i up to k).
            states[begin : begin + len(innovations)] = powers * (
                self._coefficient * self._state + np.cumsum(innovations / powers)
            )
            self._state = float(states[begin + len(innovations) - 1])
        factors: Floats = np.exp(states - self._cv**2 / 2)
        return factors
