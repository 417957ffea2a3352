"""Who held a slot of the host when, and how large the batch was meanwhile: read from starts and ends alone."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from deployctl.capacity.probe import Floats, Look


@dataclass(frozen=True)
class Occupancy:
    """Who held a slot when, by start; ``steps_s`` and ``active`` are the size of the batch over time."""

    slot_s: Floats
    end_s: Floats
    steps_s: Floats
    active: Floats  # after each step
    most_waiting: int


@dataclass(frozen=True)
class Served:
    """The finished good requests of a look, by start: where their time went. Tables: requests by batch size.

    ``decode_s``: seconds between first and last token; ``tokens``: those after the first; ``prefill_s``: from the slot
    to a token's time before the first token; ``prompts``: their tokens; ``middle_s``: middle of the time in the slot.
    """

    decode_s: Floats
    tokens: Floats
    prefill_s: Floats
    prompts: Floats
    middle_s: Floats
    most_waiting: int


@lru_cache(maxsize=64)
def served(look: Look, slots: int) -> Served | None:
    """Say where the requests' time went, first come first served; None where nothing was answered."""
    seats = occupancy(look, slots)
    if seats is None:
        return None
    spent = _TimePerBatch(seats, slots)
    requests = look.requests
    good = requests.ok
    begin = (requests.start_s + requests.ttft_s)[good]
    end = (requests.start_s + requests.e2e_s)[good]
    # Whoever has a token has a slot, also where fewer slots are believed in than there are and others hold them all.
    slot = np.minimum(_slots_of(look, seats), begin)
    return Served(
        decode_s=spent.between(begin, end),
        tokens=np.maximum(requests.output_tokens[good] - 1.0, 0.0),
        prefill_s=spent.between(slot, np.maximum(slot, begin - requests.tpot_s[good])),
        prompts=requests.prompt_tokens[good].astype(np.float64),
        middle_s=(slot + end) / 2,
        most_waiting=seats.most_waiting,
    )


def occupancy(look: Look, slots: int) -> Occupancy | None:
    """Reconstruct the slots from starts and ends, first come first served; None where nothing was answered."""
    requests = look.requests
    good = requests.ok
    start = np.concatenate([requests.start_s[good], look.pending_start_s])
    end = np.concatenate([(requests.start_s + requests.e2e_s)[good], np.full(len(look.pending_start_s), np.inf)])
    if not good.any():
        return None
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    slot = np.empty(len(start))
    latest: list[float] = []  # the ``slots`` latest ends among those who came before
    waiting: list[float] = []
    most = 0
    for index, (came, left) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        slot[index] = began = max(came, latest[0]) if len(latest) == slots else came
        if len(latest) < slots:
            heapq.heappush(latest, left)
        else:
            heapq.heappushpop(latest, left)
        while waiting and waiting[0] <= came:
            heapq.heappop(waiting)
        if began > came:
            heapq.heappush(waiting, began)
        most = max(most, len(waiting))
    held = np.isfinite(slot)
    times = np.concatenate([slot[held], end[np.isfinite(end)]])
    change = np.concatenate([np.ones(int(held.sum())), -np.ones(int(np.isfinite(end).sum()))])
    order = np.argsort(times, kind="stable")
    active = np.clip(np.cumsum(change[order]), 0, slots)
    return Occupancy(slot, end, times[order], active, most)


def busiest(look: Look) -> int:
    """The most requests that were seen decoding at once: a lower bound of the slots where nobody says their number."""
    requests = look.requests
    first = (requests.start_s + requests.ttft_s)[requests.ok]
    end = (requests.start_s + requests.e2e_s)[requests.ok]
    if len(first) == 0:
        return 1
    times = np.concatenate([first, end])
    change = np.concatenate([np.ones(len(first)), -np.ones(len(end))])
    return max(1, int(np.cumsum(change[np.lexsort((change, times))]).max()))


class _TimePerBatch:
    """Seconds that the host spent at each batch size up to a given time."""

    def __init__(self, seats: Occupancy, slots: int) -> None:
        self._times = seats.steps_s
        lasted = np.diff(seats.steps_s)
        table = np.zeros((len(seats.steps_s), slots))
        sizes = seats.active[:-1].astype(np.int64)
        busy = sizes > 0
        table[1:][busy, sizes[busy] - 1] = lasted[busy]
        self._summed = np.cumsum(table, axis=0)

    def between(self, begin: Floats, end: Floats) -> Floats:
        """Seconds at each batch size (columns) within each interval (rows)."""
        return self._upto(end) - self._upto(begin)

    def _upto(self, when: Floats) -> Floats:
        index = np.clip(np.searchsorted(self._times, when, side="right") - 1, 0, len(self._times) - 1)
        inside = np.clip(when - self._times[index], 0.0, None)
        found = self._summed[index].copy()
        following = np.minimum(index + 1, len(self._times) - 1)
        growth = self._summed[following] - self._summed[index]
        length = np.maximum(self._times[following] - self._times[index], 1e-12)
        found += growth * np.minimum(inside / length, 1.0)[:, None]
        return np.asarray(found, dtype=np.float64)


def _slots_of(look: Look, seats: Occupancy) -> Floats:
    """The slot times of the good requests, parallel to them (``seats`` also holds the open ones, all by start)."""
    good = look.requests.ok
    start = np.concatenate([look.requests.start_s[good], look.pending_start_s])
    order = np.argsort(start, kind="stable")
    slot = np.empty(len(start))
    slot[order] = seats.slot_s
    return np.asarray(slot[: int(good.sum())], dtype=np.float64)
