"""Whether the host kept its speed: a drifting one makes every number of a search a number of another host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deployctl.capacity.occupancy import served
from deployctl.capacity.probe import Floats, Look
from deployctl.capacity.twin import Twin
from deployctl.stats.drift import trend
from deployctl.stats.wander import STILL, Wander, wander

_BLOCKS = 24
_MOST_BLOCKS = 96
_LEAST_PER_BLOCK = 5
_SURE = 8.0  # |t| of a trend that counts; see ``stats.drift``
_LEAST_CHANGE = 0.03  # of the speed
_CLIFF = 0.72  # a larger batch that gets less than this share of a smaller one's tokens
_SEEN_S = 20.0  # answers' seconds in a batch size, and
_SEEN_SHARE = 0.01  # … their share of all, below which its rate is not judged


def speeds(look: Look, twin: Twin) -> tuple[Floats, Floats, Floats]:
    """Middle, speed and weight of each request: what it got done in its company, over what the twin would have."""
    found = served(look, twin.slots)
    if found is None:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    sizes = np.arange(1, twin.slots + 1)
    each = np.array(twin.decode) / sizes
    decode = found.decode_s.sum(axis=1)
    prefill = found.prefill_s.sum(axis=1)
    # Seconds that the twin would have taken for what was done, in the company that there was.
    with np.errstate(divide="ignore", invalid="ignore"):
        told = np.where(decode > 0, found.tokens * decode / np.maximum(found.decode_s @ each, 1e-12), 0.0)
        told += np.where(
            prefill > 0, found.prompts * prefill / np.maximum(found.prefill_s @ (twin.prefill / sizes), 1e-12), 0.0
        )
    taken = decode + prefill
    # An answer that the first-come-first-served account cannot place has no time of its own.
    usable = (taken > 0) & (told > 0) & np.isfinite(taken) & np.isfinite(found.middle_s)
    return found.middle_s[usable], (told / np.maximum(taken, 1e-12))[usable], taken[usable]


@dataclass(frozen=True)
class Pace:
    """The host's speed over a search: of each answer, in order of time, and how much it weighs. Times in seconds."""

    times_s: Floats
    speed: Floats  # over the twin's
    weight: Floats  # seconds that the answer took

    @classmethod
    def of(cls, looks: tuple[Look, ...], twin: Twin) -> Pace:
        """Put the probes' answers one behind the other."""
        times, fast, heavy, offset = [], [], [], 0.0
        for look in looks:
            when, speed, weight = speeds(look, twin)
            times.append(when + offset)
            fast.append(speed)
            heavy.append(weight)
            offset += look.now_s
        at, speed, weight = np.concatenate(times), np.concatenate(fast), np.concatenate(heavy)
        order = np.argsort(at, kind="stable")
        return cls(at[order], speed[order], weight[order])

    def drift(self) -> str | None:
        """Say that the host slowed down (or sped up) all along; None where it did not."""
        if len(self.times_s) < _BLOCKS * _LEAST_PER_BLOCK:
            return None
        parts = np.array_split(np.arange(len(self.times_s)), _BLOCKS)
        found = trend(np.array([np.average(self.speed[part], weights=self.weight[part]) for part in parts]))
        if abs(found.t) < _SURE or abs(found.change) < _LEAST_CHANGE:
            return None
        word = "slowed down" if found.change < 0 else "sped up"
        lasted = self.times_s[-1] - self.times_s[0]
        return f"drift: the host {word} by {abs(found.change):.0%} within {lasted:.0f} s"

    def wander(self) -> Wander:
        """How far the speed wanders by itself (relative to its mean), and how slowly."""
        count = min(_MOST_BLOCKS, len(self.times_s) // _LEAST_PER_BLOCK)
        if count < 2:
            return STILL
        parts = np.array_split(np.arange(len(self.times_s)), count)
        means, noises = [], []
        for part in parts:
            weight = self.weight[part] / self.weight[part].sum()
            mean = float(weight @ self.speed[part])
            means.append(mean)
            noises.append(float(weight**2 @ (self.speed[part] - mean) ** 2))
        middle = float(np.mean(means))
        block_s = float(self.times_s[-1] - self.times_s[0]) / count
        return wander(np.array(means) / middle, float(np.mean(noises)) / middle**2, max(block_s, 1e-6))


def cliff(twin: Twin, found: Wander = STILL) -> str | None:
    """Say that the host gets less done in all once its batch exceeds a size; None where it does not.

    Where the speed wanders by itself, batches were seen at different speeds: it takes so much more of a fall.
    """
    seen = np.array(twin.seen_s)
    judged = np.flatnonzero((seen > _SEEN_S) & (seen > _SEEN_SHARE * seen.sum()))
    if len(judged) < 2:
        return None
    rates = np.array(twin.decode)
    best = int(judged[0])
    for index in judged[1:]:
        if rates[index] < (_CLIFF - found.sd) * rates[best]:
            return (
                f"cliff: with {index + 1} requests at once the host writes {rates[index]:.0f} tokens/s in all, "
                f"against {rates[best]:.0f} with {best + 1}"
            )
        if rates[index] > rates[best]:
            best = int(index)
    return None
