"""Two records side by side: what changed in capacity and attainment, how surely, and what else with it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deployctl.records.parts import Capacity, Probe
from deployctl.records.schema import Record

Direction = Literal["more", "fewer", "equal", "not decided"]


@dataclass(frozen=True)
class UsersChange:
    """The change of the certified users from the first record to the second.

    ``low`` and ``high`` bound the change of the true capacity (None: no bound on that side), because each run only
    says that its capacity lies from ``certified_users`` to ``at_most_users``. ``direction`` is what these bounds prove.
    """

    before: int
    after: int
    low: int | None
    high: int | None
    direction: Direction

    @property
    def certified(self) -> int:
        """Difference of the two certified numbers."""
        return self.after - self.before


@dataclass(frozen=True)
class AttainmentChange:
    """The change of the attainment at one number of users, second minus first, with its interval (shares of 1)."""

    users: int
    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Second minus first."""
        return self.after - self.before

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Changed:
    """Something else that differs: a dotted name of the record, and its two values as text (empty: not there)."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Comparison:
    """What ``compare`` found. ``obstacles`` say why the numbers do not answer the same question; empty: they do.

    ``users`` is None when one of the runs gives no capacity (invalid).
    """

    before: str
    after: str
    obstacles: tuple[str, ...]
    users: UsersChange | None
    attainment: tuple[AttainmentChange, ...]
    changed: tuple[Changed, ...]


def compare(before: Record, after: Record) -> Comparison:
    """Compare two runs. Attainments are compared where both held the same users validly and gave an interval."""
    return Comparison(
        before=before.run_id,
        after=after.run_id,
        obstacles=_obstacles(before, after),
        users=_users(before.capacity, after.capacity),
        attainment=tuple(_attainments(before, after)),
        changed=tuple(_changes(before, after)),
    )


def difference_interval(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[float, float]:
    """Return the interval of ``after - before`` from two independent (estimate, low, high).

    MOVER (Zou and Donner 2008, "Construction of confidence limits about effect measures", Statistics in Medicine 27);
    with Wilson limits it is Newcombe's method 10 (1998). It keeps the level and the skewness of its two inputs.
    """
    (first, first_low, first_high), (second, second_low, second_high) = before, after
    difference = second - first
    low = difference - math.hypot(second - second_low, first_high - first)
    high = difference + math.hypot(second_high - second, first - first_low)
    return max(-1.0, low), min(1.0, high)


def _obstacles(before: Record, after: Record) -> tuple[str, ...]:
    questions = (
        ("model", before.model.name, after.model.name),
        ("SLO", before.slo, after.slo),
        ("workload", before.workload, after.workload),
        ("engine", before.deployment.engine, after.deployment.engine),
    )
    different = [f"another {name}" for name, first, second in questions if first != second]
    unfinished = [f"run {r.run_id} was {r.status}" for r in (before, after) if r.status != "finished"]
    return (*different, *unfinished)


def _users(before: Capacity, after: Capacity) -> UsersChange | None:
    if "invalid" in (before.status, after.status):
        return None
    first, second = _bracket(before), _bracket(after)
    low = None if first[1] is None else second[0] - first[1]
    high = None if second[1] is None else second[1] - first[0]
    direction: Direction = "not decided"
    if low is not None and low > 0:
        direction = "more"
    elif high is not None and high < 0:
        direction = "fewer"
    elif low == high == 0:
        direction = "equal"
    return UsersChange(before.certified_users, after.certified_users, low, high, direction)


def _bracket(block: Capacity) -> tuple[int, int | None]:
    return block.certified_users, block.at_most_users


def _attainments(before: Record, after: Record) -> Iterator[AttainmentChange]:
    first, second = _levels(before), _levels(after)
    for users in sorted(first.keys() & second.keys()):
        low, high = difference_interval(first[users], second[users])
        yield AttainmentChange(users, first[users][0], second[users][0], low, high)


def _levels(record: Record) -> dict[int, tuple[float, float, float]]:
    """The estimate and its bounds per number of users, of the valid probe with the most requests."""
    best: dict[int, Probe] = {}
    for probe in record.probes:
        if probe.verdict == "invalid" or _estimate(probe) is None:
            continue
        known = best.get(probe.users)
        if known is None or probe.requests > known.requests:
            best[probe.users] = probe
    return {users: found for users, probe in best.items() if (found := _estimate(probe)) is not None}


def _estimate(probe: Probe) -> tuple[float, float, float] | None:
    if probe.attainment is None or probe.attainment_low is None or probe.attainment_high is None:
        return None
    return probe.attainment, probe.attainment_low, probe.attainment_high


def _changes(before: Record, after: Record) -> Iterator[Changed]:
    """What a reader would suspect first: the plan, the host, the model's bytes, the engine and its settings."""
    first, second = _facts(before), _facts(after)
    for name in dict.fromkeys((*first, *second)):
        if first.get(name, "") != second.get(name, ""):
            yield Changed(name, first.get(name, ""), second.get(name, ""))


def _facts(record: Record) -> dict[str, str]:
    facts: dict[str, object] = {"deployctl_version": record.deployctl_version}
    blocks = {
        "plan": (record.plan, ("id", "vcpus", "ram_gb", "gpus")),
        "host": (
            record.host,
            ("name", "address", "os", "kernel", "cpu_model", "cpus", "cpu_quota", "ram_bytes", "gpus"),
        ),
        "model": (record.model, ("variant", "digest", "bytes")),
        "deployment": (record.deployment, ("engine", "ollama_version", "archive_sha256", "gpu_share")),
        "sizing": (record.sizing, ("slots", "context", "kv_type", "gpu_layers")),
        "slo": (record.slo, ("ttft_s", "tpot_s", "e2e_s", "attainment")),
    }
    for block, (part, names) in blocks.items():
        facts.update({f"{block}.{name}": getattr(part, name) for name in names if part is not None})
    facts.update({f"settings.{name}": value for name, value in record.deployment.settings.items()})
    return {name: str(value) for name, value in facts.items() if value not in (None, ())}
