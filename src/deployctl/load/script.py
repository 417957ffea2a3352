"""What one user does, drawn ahead from the workload by a random stream of the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from deployctl.catalog.workloads import Workload

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Draw:
    """One request as drawn: the pause before it in seconds, lengths in tokens, a number that picks texts, a seed."""

    think_s: float
    prompt_tokens: int
    output_tokens: int
    pick: int
    seed: int


def generator(seed: int, user: int) -> np.random.Generator:
    """Return the random stream of ``user``, independent of every other user's (NumPy SeedSequence, spawn keys)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(user,))))


def draws(workload: Workload, rng: np.random.Generator) -> Iterator[Draw]:
    """Yield the user's requests for ever; the same stream gives the same requests."""
    while True:
        think = workload.think_s.sample(rng, _BLOCK).tolist()
        prompt = workload.prompt_tokens.sample_counts(rng, _BLOCK).tolist()
        output = workload.output_tokens.sample_counts(rng, _BLOCK).tolist()
        picks = rng.integers(0, 2**31, _BLOCK).tolist()
        seeds = rng.integers(1, 2**31 - 1, _BLOCK).tolist()
        yield from map(Draw, think, prompt, output, picks, seeds)


def first_think_s(workload: Workload, rng: np.random.Generator) -> float:
    """Return the think time before a user's very first request, such that users are spread from the start.

    It is the rest of a think time that has already begun: a think time drawn with a probability proportional to its
    length, times a uniform number (the equilibrium residual life of renewal theory; Cox, Renewal Theory, 1962, ch. 5).
    For an exponential law that is the law itself, for a constant one it is uniform.
    """
    think = workload.think_s.sample(rng, 32)
    total = float(think.sum())
    if total <= 0:
        return 0.0
    return float(rng.choice(think, p=think / total) * rng.random())
