"""One user alone, answer after answer: what a promise of speed is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from deployctl.catalog.distributions import Dist
from deployctl.catalog.workloads import Workload
from deployctl.events import Emit, StepProgress
from deployctl.jobs.promises import ANSWER_TOKENS, LOOKS
from deployctl.load.driver import LocustDriver
from deployctl.load.samples import Sample
from deployctl.resources import Project

_LONGEST_S = 3600.0  # no workload may wait longer for an answer

Answer = tuple[float, float]
"""TTFT and TPOT in seconds; both infinite for an answer that failed."""


def one_user(
    url: str,
    reference: str,
    workload: Workload,
    *,
    out_dir: Path,
    project: Project,
    seed: int,
    decided: Callable[[Sequence[Answer]], bool],
    max_seconds: float,
    patience_s: float,
    emit: Emit,
) -> tuple[list[Answer], tuple[Path, ...]]:
    """Ask for answers of ``ANSWER_TOKENS`` tokens, one after the other without a pause, until it is decided.

    ``decided`` is asked at the looks of ``LOOKS``. The first answer warms up and is not among those returned. Returns
    the answers and the files of raw requests. Ends early after ``max_seconds``, or when the load process dies. An
    answer fails after ``patience_s``: the workload's own limit is made for its shorter answers.
    """
    asked = workload.model_copy(
        update={
            "output_tokens": Dist(dist="constant", mean=ANSWER_TOKENS),
            "think_s": Dist(dist="constant", mean=0),
            "timeout_s": min(max(workload.timeout_s, patience_s), _LONGEST_S),
        }
    )
    seen: list[Sample] = []
    with LocustDriver(url, reference, asked, seed=seed, out_dir=out_dir, project=project) as driver:
        driver.set_users(1, think=False)
        deadline = monotonic() + max_seconds
        look = 0
        while driver.alive and monotonic() < deadline and look < len(LOOKS):
            seen += [sample for sample in driver.poll(0.2).requests if sample.counts]
            emit(StepProgress("alone", "one user alone", max(0, len(seen) - 1), LOOKS[-1], "answers"))
            if len(seen) > LOOKS[look]:
                if decided(answers_of(seen)[: LOOKS[look]]):
                    break
                look += 1
        driver.cut()
    kept = LOOKS[min(look, len(LOOKS) - 1)]
    return answers_of(seen)[:kept], tuple(driver.sample_files)


def answers_of(samples: Sequence[Sample]) -> list[Answer]:
    """The answers after the first; a one-token answer has no TPOT and is left out."""
    found = []
    for sample in samples[1:]:
        if not sample.ok:
            found.append((math.inf, math.inf))
        elif sample.output_tokens > 1:
            found.append((sample.ttft_s, sample.tpot_s))
    return found
