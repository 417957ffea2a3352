"""Whether the host kept its speed: a drifting one makes every number of a search a number of another host."""

from __future__ import annotations

import numpy as np

from deployctl.capacity.occupancy import served
from deployctl.capacity.probe import Floats, Look
from deployctl.capacity.twin import Twin
from deployctl.stats.drift import trend

_BLOCKS = 24
_LEAST_PER_BLOCK = 5
_SURE = 8.0  # |t| of a trend that counts; see ``stats.drift``
_LEAST_CHANGE = 0.03  # of the speed
_CLIFF = 0.8  # a larger batch that gets less than this share of a smaller one's tokens
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
    usable = (taken > 0) & (told > 0)
    return found.middle_s[usable], (told / np.maximum(taken, 1e-12))[usable], taken[usable]


def drift(looks: tuple[Look, ...], twin: Twin) -> str | None:
    """Say that the host slowed down (or sped up) over the probes, one after the other; None where it did not."""
    middle, speed, weight, offset = [], [], [], 0.0
    for look in looks:
        when, fast, heavy = speeds(look, twin)
        middle.append(when + offset)
        speed.append(fast)
        weight.append(heavy)
        offset += look.now_s
    times, fast, heavy = np.concatenate(middle), np.concatenate(speed), np.concatenate(weight)
    if len(times) < _BLOCKS * _LEAST_PER_BLOCK:
        return None
    order = np.argsort(times, kind="stable")
    blocks = [np.average(fast[part], weights=heavy[part]) for part in np.array_split(order, _BLOCKS)]
    found = trend(np.array(blocks))
    if abs(found.t) < _SURE or abs(found.change) < _LEAST_CHANGE:
        return None
    word = "slowed down" if found.change < 0 else "sped up"
    return f"drift: the host {word} by {abs(found.change):.0%} within {times[order[-1]] - times[order[0]]:.0f} s"


def cliff(twin: Twin) -> str | None:
    """Say that the host gets less done in all once its batch exceeds a size; None where it does not."""
    seen = np.array(twin.seen_s)
    judged = np.flatnonzero((seen > _SEEN_S) & (seen > _SEEN_SHARE * seen.sum()))
    if len(judged) < 2:
        return None
    rates = np.array(twin.decode)
    best = int(judged[0])
    for index in judged[1:]:
        if rates[index] < _CLIFF * rates[best]:
            return (
                f"cliff: with {index + 1} requests at once the host writes {rates[index]:.0f} tokens/s in all, "
                f"against {rates[best]:.0f} with {best + 1}"
            )
        if rates[index] > rates[best]:
            best = int(index)
    return None
