"""What the users of a workload ask of a server, as laws in the server's own tokens. Pure."""

from __future__ import annotations

from deployctl.capacity.twin import Demand
from deployctl.catalog.workloads import Workload
from deployctl.load.baseline import Baseline
from deployctl.load.prober import Calibration


def calibration(workload: Workload, alone: Baseline) -> Calibration:
    """What one user alone tells of the server's counting and reading, for judging probes.

    Nothing of a workload whose requests share prefixes: there the server counts earlier turns, and may reuse them.
    """
    if workload.warm or workload.turns.expected() != 1:
        return Calibration()
    return Calibration(alone.prompt_ratio or 1.0, alone.read_tokens_per_s)


def demand_of(workload: Workload, alone: Baseline) -> Demand | None:
    """The laws that prompts, answers and pauses are drawn from, prompts in the server's tokens.

    None where the server does not write what it is asked for (``alone`` had an answer that ended early): then the
    answers follow a law that nobody knows, and a twin that played the drawn one would be another workload's.
    """
    if alone.short_answers > 0:
        return None
    prompts = workload.prompt_tokens.scaled(calibration(workload, alone).prompt_ratio)
    return Demand(prompts, workload.output_tokens, workload.think_s)
