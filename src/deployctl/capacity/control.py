"""The twin as control variate: it plays the very inputs that a probe drew, and takes the luck of the draw out.

Long answers or short pauses that happen to fall together raise the misses of host and twin alike. What the host missed
minus what the twin missed, plus what the twin misses in the long run, has the same mean as the host's misses however
wrong the twin is (Law: Simulation Modeling and Analysis, section 11.4), and varies less the better it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from deployctl.capacity.attainment import met
from deployctl.capacity.probe import Floats, Look, Requests, Slo
from deployctl.capacity.twin import Demand, Twin, play, scenario_of

if TYPE_CHECKING:
    from deployctl.simulator.inputs import Block

# Requests of the twin's long run: so many times those of the host, within bounds.
_LONGER, _SHORTEST, _LONGEST = 60, 40_000, 320_000
_FAR_S = 1e9
_ENDLESS = 10**8


@dataclass(frozen=True)
class Control:
    """A twin, and what users ask of it. The demand must be the law that the probes draw from, not a sample of it."""

    twin: Twin
    demand: Demand
    slo: Slo

    def expected(self, users: int, requests: int) -> tuple[float, float]:
        """The twin's own miss share in the long run, and the standard error of that figure.

        The run is the longer the more ``requests`` of the host it is to be compared with.
        """
        length = _SHORTEST
        while length < min(_LONGER * requests, _LONGEST):
            length *= 2
        return _long_run(self.twin, self.demand, self.slo, users, length)

    def deviations(self, look: Look, mean: float) -> Floats:
        """For each finished request of a look, the twin's miss (0 or 1) minus its ``mean``.

        0 where the twin has nothing to say: it knows the inputs only up to the moment of the look, so its requests
        count only up to the second until which every user's next step is known.
        """
        if len(look.requests) == 0:
            return np.zeros(0)
        record = _Record.of(look)
        missed, began, known_s = self._replayed(look, record)
        return np.where(np.isfinite(missed) & (began <= known_s), missed - mean, 0.0)

    def _replayed(self, look: Look, record: _Record) -> tuple[Floats, Floats, float]:
        """The twin's misses and starts, parallel to the look's requests, and the second until which it is informed."""
        from deployctl.simulator.virtual import closed_loop

        scenario = scenario_of(self.twin, self.demand, self.slo)
        loop = closed_loop(scenario, look.users, np.random.SeedSequence(0), inputs=_Tape(record))
        loop.advance(1.5 * look.now_s + 60.0)
        played = loop.requests()
        order, place, first = _by_user(played, look.users)
        user = played.user[order]
        inside = place < record.count[user]
        target = record.order[record.first[user[inside]] + place[inside]]
        missed = np.full(len(look.requests), np.nan)
        began = np.full(len(look.requests), np.inf)
        missed[target] = ~met(played, self.slo)[order][inside]
        began[target] = played.start_s[order][inside]
        behind = look.now_s - _last_end(look.requests, record.order, record.first)
        return missed, began, float(np.min(_last_end(played, order, first) + np.where(record.told, behind, 0.0)))


@dataclass(frozen=True)
class _Record:
    """A look's inputs by round (rows) and user (columns). ``order``: its requests by user, then start; ``first``: where
    each user's begin; ``count``: how many. ``told``: users whose step after the last answer is known.
    """

    think_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    order: NDArray[np.int64]
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    told: NDArray[np.bool_]

    @classmethod
    def of(cls, look: Look) -> _Record:
        requests, users = look.requests, look.users
        order, place, first = _by_user(requests, users)
        count = np.diff(first)
        user, start = requests.user[order], requests.start_s[order]
        ended = start + np.where(requests.ok, requests.e2e_s, 0.0)[order]
        before = np.where(place == 0, 0.0, np.concatenate([[0.0], ended[:-1]]))
        rounds = int(count.max()) + 1
        think = np.full((rounds, users), _FAR_S)
        prompt = np.ones((rounds, users))
        output = np.full((rounds, users), float(_ENDLESS))
        think[place, user] = np.maximum(start - before, 0.0)
        prompt[place, user] = requests.prompt_tokens[order]
        output[place, user] = requests.output_tokens[order]
        told = np.ones(users, dtype=bool)
        if look.pending_user is not None:
            # An open request came after a known pause; its answer is not over yet.
            owner = look.pending_user
            pause = look.pending_start_s - _last_end(requests, order, first)[owner]
            think[count[owner], owner] = np.maximum(pause, 0.0)
            prompt[count[owner], owner] = float(requests.prompt_tokens.mean())
        elif len(look.pending_start_s):
            told[:] = False
        return cls(think, prompt, output, order, first, count, told)


class _Tape:
    """A record as a source of inputs; after its end nobody comes back."""

    def __init__(self, record: _Record) -> None:
        self._record = record
        self._at = 0

    def draw(self, rounds: int) -> Block:
        """Return the next rounds."""
        from deployctl.simulator.inputs import Block

        record, begin = self._record, self._at
        self._at += rounds

        def part(table: Floats, blank: float) -> Floats:
            piece = table[begin : begin + rounds]
            rest = np.full((rounds - len(piece), table.shape[1]), blank)
            return np.concatenate([piece, rest]).ravel()

        return Block(
            part(record.think_s, _FAR_S),
            part(record.prompt_tokens, 1.0).astype(np.int64),
            part(record.output_tokens, 1.0).astype(np.int64),
        )


def _by_user(requests: Requests, users: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Order by user, then start; the round of each request in that order; where each user's requests begin."""
    order = np.lexsort((requests.start_s, requests.user)).astype(np.int64)
    user = requests.user[order]
    first = np.searchsorted(user, np.arange(users + 1)).astype(np.int64)
    return order, np.arange(len(user), dtype=np.int64) - first[user], first


def _last_end(requests: Requests, order: NDArray[np.int64], first: NDArray[np.int64]) -> Floats:
    """When each user's last finished request ended; 0 for a user who has none."""
    ended = (requests.start_s + np.where(requests.ok, requests.e2e_s, 0.0))[order]
    found = np.zeros(len(first) - 1)
    some = np.diff(first) > 0
    found[some] = ended[first[1:][some] - 1]
    return found


@lru_cache(maxsize=256)
def _long_run(twin: Twin, demand: Demand, slo: Slo, users: int, length: int) -> tuple[float, float]:
    missed = play(scenario_of(twin, demand, slo), users, slo, max(length, 40 * users), seed=7)
    size = len(missed) // 30
    batches = missed[: size * 30].reshape(30, size).mean(axis=1)
    return float(missed.mean()), float(batches.std(ddof=1) / np.sqrt(30))
