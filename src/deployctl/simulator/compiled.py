"""The event loop of ``virtual`` for a just-in-time compiler: the same steps on the same tables, many times as fast.

A proof plays hundreds of millions of requests. Where Numba is installed (the extra ``fast``) they are played here, else
in plain Python; a test holds the two against each other bit by bit. Whatever may have to grow (inputs, the clock's
tables) is asked for before a step changes anything, so that the step can be taken anew.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from deployctl.simulator.inputs import Block
from deployctl.simulator.virtual import ClosedLoop

DONE, INPUTS, CLOCK = 0, 1, 2
"""What :func:`play` returns: the time is up; it needs the next round of inputs; it needs a longer clock."""

ACTIVE, THINKING, PREFILLS, DECODES, QUEUE_AT, QUEUED, FIRST_AT, FIRSTS, SENT, RECENT, COUNTS = range(11)
"""Places in the whole-number state: sizes of heaps and rings, where the rings begin, where the clock was last read."""

NOW, PREFILLED, DECODED, REALS = range(4)
"""Places in the real-valued state, all in work (see ``speed``)."""


def _jit(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # there is no folder that could keep the compiled code
        return numba.njit(function)


@_jit
def _push(keys: Any, requests: Any, size: int, key: float, request: int) -> None:
    """Put an entry on a heap of (key, request) pairs that has ``size`` of them."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if keys[parent] < key or (keys[parent] == key and requests[parent] < request):
            break
        keys[place], requests[place] = keys[parent], requests[parent]
        place = parent
    keys[place], requests[place] = key, request


@_jit
def _pop(keys: Any, requests: Any, size: int) -> int:
    """Take the smallest entry off a heap of ``size``, and return its request."""
    taken = requests[0]
    last = size - 1
    key, request = keys[last], requests[last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (
            keys[other] < keys[child] or (keys[other] == keys[child] and requests[other] < requests[child])
        ):
            child = other
        if key < keys[child] or (key == keys[child] and request < requests[child]):
            break
        keys[place], requests[place] = keys[child], requests[child]
        place = child
    keys[place], requests[place] = key, request
    return int(taken)


@_jit
def _before(table: Any, value: float, hint: int) -> int:
    """How many entries of a rising table are less than ``value``; near ``hint`` it is found at once."""
    low, high = 0, len(table)
    if 0 <= hint < high and table[hint] < value:
        step, low = 1, hint + 1
        while low + step < high and table[low + step - 1] < value:
            low += step
            step *= 2
        high = min(high, low + step)
    while low < high:
        middle = (low + high) >> 1
        if table[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def _upto(table: Any, value: float) -> int:
    """How many entries of a rising table are at most ``value``."""
    low, high = 0, len(table)
    while low < high:
        middle = (low + high) >> 1
        if table[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def play(
    until: float,
    think_on: bool,
    users: int,
    slots: int,
    limit: float,
    constant: bool,
    whole: bool,
    counts: Any,
    reals: Any,
    prefill_rates: Any,
    decode_rates: Any,
    think: Any,
    prompt: Any,
    output: Any,
    start_s: Any,
    slot_work: Any,
    first_work: Any,
    end_s: Any,
    order: Any,
    thinking_at: Any,
    thinking: Any,
    prefills_at: Any,
    prefills: Any,
    decodes_at: Any,
    decodes: Any,
    queue: Any,
    firsts_at: Any,
    firsts: Any,
    times: Any,
    work: Any,
    speeds: Any,
) -> int:
    """Play up to ``until`` (work). ``counts`` and ``reals`` are the state (places above), changed in place."""
    said = DONE
    while True:
        active, now = counts[ACTIVE], reals[NOW]
        prefilled, decoded = reals[PREFILLED], reals[DECODED]
        prefill_rate, decode_rate = prefill_rates[active], decode_rates[active]
        due_prefill = now + (prefills_at[0] - prefilled) / prefill_rate if counts[PREFILLS] > 0 else math.inf
        due_decode = now + (decodes_at[0] - decoded) / decode_rate if counts[DECODES] > 0 else math.inf
        due = min(due_prefill, due_decode)
        arrives = counts[THINKING] > 0 and thinking_at[0] < due
        if arrives:
            due = thinking_at[0]
        stops = due > until or due == math.inf
        if stops:
            due = until if until < math.inf else now
        # Who comes back after this step, and when?
        ended, arrival, comes_at = 0.0, 0.0, 0.0
        finishes = not stops and not arrives and due_prefill > due_decode
        refused = not stops and arrives and active >= slots and counts[QUEUED] >= limit
        if finishes:
            ended = due
            if not constant:
                if due > work[-1]:
                    said = CLOCK
                    break
                index = _before(work, due, counts[RECENT])
                ended = 0.0 if index == 0 else times[index - 1] + (due - work[index - 1]) / speeds[index - 1]
                counts[RECENT] = max(index - 1, 0)
        elif refused:
            ended = start_s[thinking[0]]
        returns = think_on and (finishes or refused)
        if returns:
            following = (decodes[0] if finishes else thinking[0]) + users
            if following >= len(think):
                said = INPUTS
                break
            arrival = comes_at = ended + think[following]
            if not constant:
                if arrival >= times[-1]:
                    said = CLOCK
                    break
                index = int(arrival) if whole else _upto(times, arrival) - 1
                comes_at = work[index] + (arrival - times[index]) * speeds[index]
        # Now the step itself.
        passed, before = due - now, decoded
        if stops or arrives:
            prefilled += passed * prefill_rate
            decoded += passed * decode_rate
        elif due_prefill <= due_decode:
            prefilled = prefills_at[0]
            decoded += passed * decode_rate
        else:
            prefilled += passed * prefill_rate
            decoded = decodes_at[0]
        while counts[FIRSTS] > 0 and firsts_at[counts[FIRST_AT]] <= decoded:
            first_work[firsts[counts[FIRST_AT]]] = now + (firsts_at[counts[FIRST_AT]] - before) / decode_rate
            counts[FIRST_AT] = (counts[FIRST_AT] + 1) % len(firsts)
            counts[FIRSTS] -= 1
        reals[NOW], reals[PREFILLED], reals[DECODED] = due, prefilled, decoded
        if stops:
            break
        if arrives:
            request = _pop(thinking_at, thinking, counts[THINKING])
            counts[THINKING] -= 1
            order[counts[SENT]] = request
            counts[SENT] += 1
            if active < slots:
                counts[ACTIVE] += 1
                slot_work[request] = due
                _push(prefills_at, prefills, counts[PREFILLS], prefilled + prompt[request], request)
                counts[PREFILLS] += 1
            elif not refused:
                queue[(counts[QUEUE_AT] + counts[QUEUED]) % len(queue)] = request
                counts[QUEUED] += 1
            else:
                end_s[request] = ended
        elif not finishes:
            request = _pop(prefills_at, prefills, counts[PREFILLS])
            counts[PREFILLS] -= 1
            _push(decodes_at, decodes, counts[DECODES], decoded + output[request], request)
            counts[DECODES] += 1
            place = (counts[FIRST_AT] + counts[FIRSTS]) % len(firsts)
            firsts_at[place], firsts[place] = decoded + 1.0, request
            counts[FIRSTS] += 1
        else:
            request = _pop(decodes_at, decodes, counts[DECODES])
            counts[DECODES] -= 1
            end_s[request] = ended
            if counts[QUEUED] > 0:
                waiter = queue[counts[QUEUE_AT]]
                counts[QUEUE_AT] = (counts[QUEUE_AT] + 1) % len(queue)
                counts[QUEUED] -= 1
                slot_work[waiter] = due
                _push(prefills_at, prefills, counts[PREFILLS], prefilled + prompt[waiter], waiter)
                counts[PREFILLS] += 1
            else:
                counts[ACTIVE] -= 1
        if returns:
            start_s[following] = arrival
            _push(thinking_at, thinking, counts[THINKING], comes_at, following)
            counts[THINKING] += 1
    return said


class CompiledLoop(ClosedLoop):
    """The loop in compiled code."""

    def _empty(self) -> None:
        self._order = array("q")

    def _begin(self) -> None:
        users = self.users
        self._counts = np.zeros(COUNTS, dtype=np.int64)
        self._reals = np.zeros(REALS)
        self._reals[NOW] = self.clock.to_work(self.began_s)
        self._rates = np.array(self._prefill_rates), np.array(self._decode_rates)
        keys = np.array([self.clock.to_work(start) for start in self._start_s[:users]])
        first = np.lexsort((np.arange(users), keys))  # a sorted list is a heap
        self._thinking = keys[first], first.astype(np.int64)
        self._prefills = np.zeros(self._slots), np.zeros(self._slots, dtype=np.int64)
        self._decodes = np.zeros(self._slots), np.zeros(self._slots, dtype=np.int64)
        self._firsts = np.zeros(self._slots), np.zeros(self._slots, dtype=np.int64)
        self._queue = np.zeros(users, dtype=np.int64)
        self._counts[THINKING] = users

    @property
    def sent(self) -> int:
        """The number of requests that have been sent so far."""
        return int(self._counts[SENT])

    @property
    def _work(self) -> float:
        return float(self._reals[NOW])

    def _arrived(self) -> NDArray[np.int64]:
        return np.frombuffer(self._order, dtype=np.int64)[: self.sent].copy()

    def _grow(self) -> Block:
        block = super()._grow()
        self._order.frombytes(np.zeros(len(block.think_s), dtype=np.int64).tobytes())
        return block

    def _play(self, until: float, *, think_on: bool) -> None:
        if not think_on:
            self._counts[THINKING] = 0
        while (said := self._steps(until, think_on)) != DONE:
            if said == INPUTS:
                self._grow()
            else:
                self.clock.grow()

    def _steps(self, until: float, think_on: bool) -> int:
        # Views of the tables, gone when this returns: a table that is looked at cannot grow.
        return int(
            play(
                until,
                think_on,
                self.users,
                self._slots,
                float(self._queue_limit),
                self.clock.constant,
                self.clock.whole,
                self._counts,
                self._reals,
                *self._rates,
                np.frombuffer(self._think),
                np.frombuffer(self._prompt),
                np.frombuffer(self._output_tokens, dtype=np.int64),
                np.frombuffer(self._start_s),
                np.frombuffer(self._slot_work),
                np.frombuffer(self._first_work),
                np.frombuffer(self._end_s),
                np.frombuffer(self._order, dtype=np.int64),
                *self._thinking,
                *self._prefills,
                *self._decodes,
                self._queue,
                *self._firsts,
                *self.clock.tables(),
            )
        )
