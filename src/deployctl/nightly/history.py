"""From the index to a judgement: the nights of a series as the regression test reads them."""

from __future__ import annotations

from collections.abc import Sequence

from deployctl.records.db import queries
from deployctl.records.db.index import Index
from deployctl.records.db.queries import ProbeRow, RunRow, Series
from deployctl.records.regression import Judgement, Night, judge

_STEAL_STEP, _CLOCK_STEP = 0.02, 0.05


def judge_series(index: Index, series: Series, *, limit: int = 200) -> tuple[Judgement, list[RunRow]]:
    """Judge a series by its newest ``limit`` finished runs; returns them as well, oldest first."""
    rows = [row for row in queries.history(index, series, limit=limit) if row.status == "finished"]
    probes = queries.probes_of(index, [row.run_id for row in rows])
    return judge([night_of(row, probes[row.run_id]) for row in rows]), rows


def night_of(row: RunRow, probes: Sequence[ProbeRow]) -> Night:
    """A run as a night. Its certified users count where a search found them; a yes or no at one number is no search."""
    users: int | None = None
    if row.capacity_status in ("certified", "not_met"):
        users = row.certified_users
    levels: dict[int, float] = {}
    for probe in probes:
        if probe.verdict != "invalid" and probe.tpot_p50_s:
            levels.setdefault(probe.users, probe.tpot_p50_s)
    return Night(
        id=row.run_id,
        users=users,
        decode_tokens_per_s=row.decode_tokens_per_s,
        prefill_tokens_per_s=row.prefill_tokens_per_s,
        levels=levels,
        facts=facts_of(row),
    )


def facts_of(row: RunRow) -> dict[str, str]:
    """What a change may come from. Steal and clocks in steps: every night's differ a little, and that is no change."""
    found = dict(row.facts)
    if row.steal_share is not None:
        low = int(row.steal_share / _STEAL_STEP) * _STEAL_STEP
        found["steal"] = f"{100 * low:.0f} to {100 * (low + _STEAL_STEP):.0f} %"
    if row.cpu_mhz is not None:
        found["CPU clock"] = f"about {round(row.cpu_mhz / (_CLOCK_STEP * 4000)) * _CLOCK_STEP * 4:.1f} GHz"
    return found
