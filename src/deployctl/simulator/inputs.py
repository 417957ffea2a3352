"""What the users of a closed loop bring: think times and token counts, drawn ahead in blocks of whole rounds.

Request r of user u has the flat index r·users + u in every table, so the inputs do not depend on who is served when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deployctl.simulator.scenario import WorkloadSpec

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """``rounds`` requests of each user: flat arrays of rounds·users values."""

    think_s: Floats  # before the request
    prompt_tokens: Counts
    output_tokens: Counts


class Source(Protocol):
    """Whatever hands out the users' next requests: drawn from a workload, or read from a record and played again."""

    def draw(self, rounds: int) -> Block:
        """Return the next ``rounds`` requests of every user."""
        ...


class Inputs:
    """A stream of blocks for one workload. Each quantity has a random stream of its own."""

    def __init__(self, workload: WorkloadSpec, users: int, seed: np.random.SeedSequence) -> None:
        self._workload = workload
        self._users = users
        self._streams = [np.random.default_rng(child) for child in seed.spawn(3)]

    def draw(self, rounds: int) -> Block:
        """Return the next ``rounds`` requests of every user."""
        count = rounds * self._users
        think, prompt, output = self._streams
        return Block(
            self._workload.think_s.sample(think, count),
            self._workload.prompt_tokens.sample_counts(prompt, count),
            self._workload.output_tokens.sample_counts(output, count),
        )
