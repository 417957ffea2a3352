"""Judges the load generator itself: was it on time, had it CPU to spare, do its users add up? Pure.

A client-bound probe says nothing about the server: it is invalid, neither passed nor failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deployctl.load.samples import Sample
from deployctl.load.wire import Health, Open


@dataclass(frozen=True)
class ClientLimits:
    """Above these the probe is client-bound.

    Lag and delay: what the client adds to a latency must be small against the thresholds that people set (hundreds of
    milliseconds at least): 50 ms at the 99th percentile. ``cpu_share``: one Python process cannot exceed one
    core; above 0.9 the queue in front of the event loop grows without bound (utilisation law).
    ``residual``: the share of the users' time that was neither thinking nor waiting for the server.
    """

    loop_lag_p99_s: float = 0.05
    schedule_delay_p99_s: float = 0.05
    cpu_share: float = 0.9
    residual: float = 0.05


@dataclass(frozen=True)
class ClientState:
    """What was measured of the client over a probe; NaN where there was nothing to measure."""

    loop_lag_p99_s: float
    schedule_delay_p99_s: float
    cpu_share: float
    residual: float
    rss_bytes: int


def measure(
    users: int,
    window: tuple[float, float],
    samples: Sequence[Sample],
    open_requests: Iterable[Open],
    next_starts: Mapping[int, float],
    health: Sequence[Health],
) -> ClientState:
    """Return the client's state over ``window`` (monotonic seconds) in which ``users`` users were held."""
    lags = np.array([lag for report in health for lag in report.lags_s])
    delays = np.array([sample.schedule_delay_s for sample in samples if sample.counts])
    by_worker: dict[int, list[float]] = {}
    for report in health:
        by_worker.setdefault(report.worker, []).append(report.cpu_share)
    shares = [float(np.mean(of_one)) for of_one in by_worker.values()]  # the busiest worker decides
    return ClientState(
        loop_lag_p99_s=float(np.quantile(lags, 0.99)) if len(lags) else float("nan"),
        schedule_delay_p99_s=float(np.quantile(delays, 0.99)) if len(delays) else float("nan"),
        cpu_share=max(shares, default=float("nan")),
        residual=littles_residual(users, window, samples, open_requests, next_starts),
        rss_bytes=max((report.rss_bytes for report in health), default=0),
    )


def littles_residual(
    users: int,
    window: tuple[float, float],
    samples: Iterable[Sample],
    open_requests: Iterable[Open],
    next_starts: Mapping[int, float],
) -> float:
    """Return |N - X (R + Z)| / N over ``window`` (Little, A proof for L = lambda W, 1961; the interactive law).

    ``samples``, ``open_requests`` and ``next_starts`` (user to the intended start that it thinks towards) are those of
    the users of this level, who began when the window did.

    X (R + Z) is taken as the time that users spent waiting (R, from the actual send) or thinking (Z), clipped to the
    window and divided by its length, which is the same sum without the error of cycles that the window cuts.
    What is missing to N is the client's own doing: requests sent late, users that do not run, samples that were lost.
    NaN for an empty window or no users.
    """
    begin, end = window
    if end <= begin or users < 1:
        return float("nan")
    spent = 0.0
    ended: dict[int, float] = {}
    for sample in samples:
        spent += _overlap(sample.sent_s, sample.end_s, begin, end)
        spent += _overlap(sample.intended_s - sample.think_s, sample.intended_s, begin, end)
        ended[sample.user] = max(sample.end_s, ended.get(sample.user, begin))
    until = dict(next_starts)
    for one in open_requests:
        spent += _overlap(one.intended_s, end, begin, end)
        until[one.user] = one.intended_s
    for user, start in until.items():  # the think time that is going on, or that led to the open request
        spent += _overlap(ended.get(user, begin), start, begin, end)
    return abs(users - spent / (end - begin)) / users


def client_bound(state: ClientState, limits: ClientLimits) -> tuple[str, ...]:
    """Return what makes the probe client-bound, with figures and the remedy; empty if nothing does."""
    found = []
    for name, value, limit, unit in (
        ("event-loop lag p99", state.loop_lag_p99_s * 1e3, limits.loop_lag_p99_s * 1e3, " ms"),
        ("schedule delay p99", state.schedule_delay_p99_s * 1e3, limits.schedule_delay_p99_s * 1e3, " ms"),
        ("CPU of the load process", state.cpu_share * 100, limits.cpu_share * 100, " %"),
        ("Little's-law residual", state.residual * 100, limits.residual * 100, " %"),
    ):
        if value > limit:
            found.append(f"client-bound: {name} {value:.3g}{unit} > {limit:.3g}{unit} (more workers, or a free core)")
    return tuple(found)


def _overlap(start: float, stop: float, begin: float, end: float) -> float:
    return max(0.0, min(stop, end) - max(start, begin))
