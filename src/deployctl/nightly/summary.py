"""What became of a night: new, changed, failed, skipped. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from deployctl.nightly.journal import Night
from deployctl.records.regression import Judgement

Change = Literal["new", "slower", "faster", "unchanged", "learning"]


@dataclass(frozen=True)
class Finding:
    """What a measured task says, beside what was known. Numbers of users; ``message`` says the change in words."""

    key: str
    run_id: str
    status: str
    users: int
    at_most_users: int | None
    change: Change
    message: str = ""
    suspects: tuple[tuple[str, str, str], ...] = ()
    power: float | None = None
    open_since: str = ""


@dataclass(frozen=True)
class Summary:
    """One night."""

    night_id: str
    started_at: datetime
    ended_at: datetime | None
    found: tuple[Finding, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def new(self) -> tuple[Finding, ...]:
        """Measured for the first time."""
        return tuple(one for one in self.found if one.change == "new")

    @property
    def changed(self) -> tuple[Finding, ...]:
        """Slower or faster than the series' own history."""
        return tuple(one for one in self.found if one.change in ("slower", "faster"))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "night_id": self.night_id,
            "started_at": self.started_at.isoformat(),
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "counts": {
                "measured": len(self.found),
                "new": len(self.new),
                "changed": len(self.changed),
                "failed": len(self.failed),
                "skipped": len(self.skipped),
            },
            "measured": [asdict(one) for one in self.found],
            "failed": [{"task": key, "message": message} for key, message in self.failed],
            "skipped": [{"task": key, "message": message} for key, message in self.skipped],
            "notes": list(self.notes),
        }


def summarise(
    night: Night, found: Mapping[str, Finding], ended_at: datetime | None, notes: Sequence[str] = ()
) -> Summary:
    """Sum a night up from its journal and the findings of its finished tasks."""
    progress = night.progress
    return Summary(
        night_id=night.id,
        started_at=night.started_at,
        ended_at=ended_at,
        found=tuple(found[key] for key in progress if key in found),
        failed=tuple((key, one.message) for key, one in progress.items() if one.state in ("failed", "away", "busy")),
        skipped=tuple(
            (key, one.message or "the night ended before its turn")
            for key, one in progress.items()
            if one.state in ("skipped", "waiting", "running") or (one.state == "done" and key not in found)
        ),
        notes=tuple(notes),
    )


def describe(judgement: Judgement, *, first: bool) -> tuple[Change, str]:
    """A judgement as the change of a finding, in words."""
    if first:
        return "new", "measured for the first time"
    if judgement.state in ("slower", "faster"):
        parts = []
        for shift in judgement.newest:
            interval = f" ({100 * shift.low:+.1f} to {100 * shift.high:+.1f} %)" if shift.low == shift.low else ""
            parts.append(f"{shift.signal} {100 * shift.change:+.1f} %{interval}")
        return judgement.state, "; ".join(parts)
    if judgement.state == "learning":
        return "learning", "too few nights to judge by"
    return "unchanged", ""
