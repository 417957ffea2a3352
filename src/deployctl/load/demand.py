"""What the users of a workload ask of a server, as laws in the server's own tokens. Pure."""

from __future__ import annotations

from deployctl.capacity.twin import Demand
from deployctl.catalog.workloads import Workload
from deployctl.load.baseline import Baseline


def prompt_ratio(workload: Workload, alone: Baseline) -> float:
    """Tokens that the server counts per drawn prompt token; 1 where it counts none, or counts earlier turns as well."""
    one_turn = workload.turns.expected() == 1 and not workload.warm
    return alone.prompt_ratio if one_turn and alone.prompt_ratio > 0 else 1.0


def demand_of(workload: Workload, alone: Baseline) -> Demand | None:
    """The laws that prompts, answers and pauses are drawn from, prompts in the server's tokens.

    None where the server does not write what it is asked for (``alone`` had an answer that ended early): then the
    answers follow a law that nobody knows, and a twin that played the drawn one would be another workload's.
    """
    if alone.short_answers > 0:
        return None
    prompts = workload.prompt_tokens.scaled(prompt_ratio(workload, alone))
    return Demand(prompts, workload.output_tokens, workload.think_s)
