"""One user, a few requests, no think time: what the host does when nobody else is there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from time import monotonic

from deployctl.errors import MeasurementError
from deployctl.load.driver import LocustDriver
from deployctl.load.samples import Sample


@dataclass(frozen=True)
class Baseline:
    """Medians over the requests of a single user; rates are tokens per second by the server's own counters.

    ``requests`` counts successes. Rates are 0 where the server gave no durations. ``short_answers`` is the share of
    answers that ended before the asked number of tokens. ``prompt_ratio`` is what the server counted as prompt over
    what was asked for; 0 where it counts none. ``read_tokens_per_s`` is all prompt tokens over all the time it read.
    """

    requests: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    prompt_tokens: float
    output_tokens: float
    short_answers: float
    prompt_ratio: float = 0.0
    read_tokens_per_s: float = 0.0


def baseline(driver: LocustDriver, *, requests: int = 4, max_seconds: float = 60.0) -> Baseline:
    """Run one user without think times until ``requests`` have succeeded or ``max_seconds`` have passed, then drain.

    The first request warms up and is left out where there is more than one. Raises MeasurementError if none succeeds.
    """
    seen: list[Sample] = []
    driver.set_users(1, think=False)
    deadline = monotonic() + max_seconds
    while sum(sample.ok for sample in seen) <= requests and monotonic() < deadline and driver.alive:
        seen += driver.poll(0.2).requests
    drained = monotonic() + driver.workload.timeout_s + 2
    driver.set_users(0)
    while driver.alive and monotonic() < drained:
        batch = driver.poll(0.2)
        seen += batch.requests
        if batch.level is not None and batch.level.users == 0:
            break
    good = [sample for sample in seen if sample.ok]
    if not good:
        raise MeasurementError(_why(driver, seen), hint=f"read {driver.log_file}")
    return summarise(good[1:] if len(good) > 1 else good)


def summarise(good: list[Sample]) -> Baseline:
    """Return the baseline of successful requests."""
    return Baseline(
        requests=len(good),
        prefill_tokens_per_s=median(_rate(sample.prompt_tokens, sample.prompt_eval_s) for sample in good),
        decode_tokens_per_s=median(_rate(sample.output_tokens, sample.eval_s) for sample in good),
        ttft_s=median(sample.ttft_s for sample in good),
        tpot_s=median(sample.tpot_s for sample in good),
        e2e_s=median(sample.e2e_s for sample in good),
        prompt_tokens=median(sample.prompt_tokens for sample in good),
        output_tokens=median(sample.output_tokens for sample in good),
        short_answers=sum(sample.output_tokens < sample.asked_tokens for sample in good) / len(good),
        prompt_ratio=sum(sample.prompt_tokens for sample in good)
        / max(1, sum(sample.asked_prompt_tokens for sample in good)),
        read_tokens_per_s=read_rate(good),
    )


def read_rate(samples: Iterable[Sample]) -> float:
    """Prompt tokens per second over all requests whose reading the server timed; 0 where there is none."""
    timed = [sample for sample in samples if sample.ok and sample.prompt_eval_s > 0]
    return sum(sample.prompt_tokens for sample in timed) / max(1e-9, sum(sample.prompt_eval_s for sample in timed))


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0


def _why(driver: LocustDriver, seen: list[Sample]) -> str:
    if not driver.alive:
        return f"the load process died: {driver.log_tail() or 'nothing in its log'}"
    failed = [sample for sample in seen if not sample.ok]
    if not failed:
        return f"no answer from {driver.url} to a single user's first request in time"
    last = failed[-1]
    detail = " ".join(str(part) for part in (last.status or "", last.message) if part)
    return f"not one of {len(failed)} requests to {driver.url} succeeded: {last.error} {detail}".rstrip()
