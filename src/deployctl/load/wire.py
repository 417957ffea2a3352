"""The lines that parent and load process exchange: JSON, one object per line. Times are monotonic seconds.

Parent to child, on stdin (its end makes the child quit at once):
    {"cmd": "users", "n": 4, "think": true}   hold this many users; ``think: false`` leaves out think times
    {"cmd": "rate", "per_s", "process"}       instead of users: arrivals, "constant" or "poisson"
    {"cmd": "replay", "per_s"}                instead of users: the arrivals of the spec's log, so many on average
    {"cmd": "cut"}                            end every open request now; they are recorded as cancelled
    {"cmd": "stop"}                           cut, write what is left, quit

Child to parent, on stdout:
    {"event": "ready", "t"}
    {"event": "level", "t", "began", "users", "rate"}  the level is reached (0 and 0: and nothing is open any more)
    {"event": "machines", "rows": [...]}      see Machine: before each level, where others generate the load
    {"event": "batch", "t", ...}              see Report
    {"event": "bye", "t"}                     everything is written
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from deployctl.load.samples import Sample, from_columns, to_columns


@dataclass(frozen=True, slots=True)
class Health:
    """How the load process itself fared since the last report.

    ``lags_s`` are delays of a timer that should fire every 10 ms, with the fires that a long stall swallowed put back.
    ``cpu_share`` is its CPU time over wall time (1 = one core), ``rss_bytes`` its resident memory.
    """

    t_s: float
    lags_s: tuple[float, ...]
    cpu_share: float
    rss_bytes: int
    users: int
    open_requests: int
    worker: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """A request that has not ended: when it should have started, and its first token if that has come."""

    user: int
    seq: int
    intended_s: float
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """A number of users (or a rate of arrivals) that is now held: when the first began, when all of them were there."""

    users: int
    began_s: float
    reached_s: float
    rate_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Another machine that generates load, seen from this one; times in seconds.

    ``clock_s`` is how far its wall clock is ahead of this machine's, known to within ``clock_error_s`` (half of the
    quickest round trip): for people who read logs of both; no latency is made of it. ``way_s`` is the median time of a
    no-op request from there to the server, by the same way as the load.
    """

    name: str
    clock_s: float
    clock_error_s: float
    way_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """One ``batch`` line: what changed since the last one.

    ``opened`` are requests that began and are still open, ``first_tokens`` news of those already known to be open,
    ``samples`` finished requests. ``next_starts`` maps a user to the intended start that it now thinks towards.
    """

    t_s: float
    opened: tuple[Open, ...] = ()
    first_tokens: tuple[tuple[int, int, float], ...] = ()
    samples: tuple[Sample, ...] = ()
    next_starts: tuple[tuple[int, float], ...] = ()
    health: Health | None = None
    worker: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing has changed."""
        return not (self.opened or self.first_tokens or self.samples or self.next_starts or self.health)


def encode_report(report: Report) -> bytes:
    """Return the line for a report."""
    plain: dict[str, Any] = {"event": "batch", "t": report.t_s, "worker": report.worker}
    if report.opened:
        plain["opened"] = [[one.user, one.seq, one.intended_s, one.first_token_s] for one in report.opened]
    if report.first_tokens:
        plain["first_tokens"] = report.first_tokens
    if report.samples:
        plain["samples"] = to_columns(list(report.samples))
    if report.next_starts:
        plain["next_starts"] = report.next_starts
    if report.health:
        plain["health"] = asdict(report.health)
    return encode(plain)


def decode_report(plain: dict[str, Any]) -> Report:
    """Invert `encode_report`, given the parsed line."""
    health = plain.get("health")
    return Report(
        t_s=plain["t"],
        opened=tuple(Open(*row) for row in plain.get("opened", ())),
        first_tokens=tuple((user, seq, at) for user, seq, at in plain.get("first_tokens", ())),
        samples=tuple(from_columns(plain["samples"])) if "samples" in plain else (),
        next_starts=tuple((user, at) for user, at in plain.get("next_starts", ())),
        health=Health(**health | {"lags_s": tuple(health["lags_s"])}) if health else None,
        worker=plain.get("worker", 0),
    )


def shifted(report: Report, offset_s: float) -> Report:
    """Return the report with every point in time moved to a clock that is ``offset_s`` ahead; durations stay."""
    if not offset_s:
        return report
    points = ("intended_s", "sent_s", "first_byte_s", "first_token_s", "first_visible_s", "end_s")
    return replace(
        report,
        t_s=report.t_s + offset_s,
        opened=tuple(
            replace(
                one,
                intended_s=one.intended_s + offset_s,
                first_token_s=None if one.first_token_s is None else one.first_token_s + offset_s,
            )
            for one in report.opened
        ),
        first_tokens=tuple((user, seq, at + offset_s) for user, seq, at in report.first_tokens),
        samples=tuple(
            replace(sample, **{name: getattr(sample, name) + offset_s for name in points}) for sample in report.samples
        ),
        next_starts=tuple((user, at + offset_s) for user, at in report.next_starts),
        health=None if report.health is None else replace(report.health, t_s=report.health.t_s + offset_s),
    )


def parse(line: bytes) -> dict[str, Any]:
    """Read one line."""
    plain: dict[str, Any] = json.loads(line)
    return plain


def encode(plain: dict[str, Any]) -> bytes:
    """Return one line."""
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"
