"""Workloads: what one user does, as distributions of prompt, answer, think time and turns."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from deployctl.catalog.base import Entry
from deployctl.catalog.distributions import Amount, Dist


class Workload(Entry):
    """One kind of user in a closed loop: send, read the answer, think, send again.

    ``prompt_tokens`` counts the new tokens of one turn and ``output_tokens`` the asked length of its answer;
    ``think_s`` is the pause in seconds between the end of an answer and the next request. ``warm`` shares a prefix
    between requests (a system prompt, earlier turns); a cold workload makes each prompt unique. ``timeout_s`` ends a
    request, which then is a miss. ``log`` makes it an open loop: a JSON Lines file of requests, by its name in the
    project (``loadtests/…``), played ``speed`` times as fast as they came; the laws then only serve for sizing.
    """

    name: str
    title: str
    prompt_tokens: Amount
    output_tokens: Amount
    think_s: Amount
    turns: Amount = Dist(dist="constant", mean=1)
    language: Literal["en", "es", "mixed"] = "en"
    api: Literal["chat", "generate"] = "chat"
    think: bool = False
    warm: bool = False
    timeout_s: float = Field(default=120.0, gt=0, le=3600)
    log: str | None = Field(default=None, min_length=1)
    speed: float = Field(default=1.0, gt=0, le=1000)

    def tokens_at(self, p: float) -> int:
        """Return the tokens that a conversation holds in its slot at quantile ``p``: prompts and answers of all turns.

        The quantiles of one prompt and one answer are added, which bounds the quantile of their sum for these laws in
        the tail; over n turns the mean grows with n and the excess over the mean with the root of n.
        """
        turns = max(1.0, round(self.turns.quantile(p)))
        mean = self.prompt_tokens.expected() + self.output_tokens.expected()
        excess = self.prompt_tokens.quantile(p) + self.output_tokens.quantile(p) - mean
        return round(turns * mean + math.sqrt(turns) * max(0.0, excess))
