"""When a host may be measured: a span of wall-clock time in a time zone, through changes of the clock. Pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field

from deployctl.catalog.base import Entry

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _zone(name: str) -> str:
    if name not in available_timezones():
        raise ValueError(f"no time zone of that name: {name!r} (such as America/Mexico_City)")
    return name


def _wall(text: str) -> str:
    try:
        datetime.strptime(text, "%H:%M")  # noqa: DTZ007  a time of day has no zone
    except ValueError:
        raise ValueError("not a time of day: write it as 22:00") from None
    return text


Wall = Annotated[str, AfterValidator(_wall)]


class Window(Entry):
    """From one time of day to another (past midnight where ``to`` is not later), on the days on which it begins.

    A begin that the clock skips is the moment of the change; one that comes twice counts the first time, and an end
    that comes twice the second time: the window is never shorter than the host's owner expects.
    """

    begin: Wall = Field(default="22:00", alias="from")
    to: Wall = "06:00"
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    days: tuple[Day, ...] = DAYS

    def span(self, moment: datetime) -> tuple[datetime, datetime] | None:
        """The (begin, end) in UTC of the window that ``moment`` lies in; None outside of all."""
        today = moment.astimezone(ZoneInfo(self.timezone)).date()
        for offset in (-1, 0):
            begin, end = self._of(today + timedelta(days=offset))
            if begin <= moment < end and self._begins_on(today + timedelta(days=offset)):
                return begin, end
        return None

    def next_begin(self, moment: datetime) -> datetime | None:
        """The next begin after ``moment``, in UTC; None where no day is named."""
        today = moment.astimezone(ZoneInfo(self.timezone)).date()
        for offset in range(-1, 9):
            begin, _ = self._of(today + timedelta(days=offset))
            if begin > moment and self._begins_on(today + timedelta(days=offset)):
                return begin
        return None

    def _begins_on(self, day: date) -> bool:
        return DAYS[day.weekday()] in self.days

    def _of(self, day: date) -> tuple[datetime, datetime]:
        zone = ZoneInfo(self.timezone)
        begin, to = time.fromisoformat(self.begin), time.fromisoformat(self.to)
        last = day if to > begin else day + timedelta(days=1)
        return existing(datetime.combine(day, begin), zone), existing(datetime.combine(last, to), zone, last=True)


def existing(wall: datetime, zone: ZoneInfo, *, last: bool = False) -> datetime:
    """Return the moment in UTC at which ``zone``'s clocks show ``wall``.

    Where they show it twice: the first time, or the ``last``. Where they skip it: the moment of the change (PEP 495:
    in a gap, fold 0 means the offset before the change, fold 1 the one after).
    """
    found = wall.replace(tzinfo=zone, fold=int(last)).astimezone(UTC)
    if found.astimezone(zone).replace(tzinfo=None) == wall:
        return found
    early = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    late = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    before = early.astimezone(zone).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) / 2
        early, late = (middle, late) if middle.astimezone(zone).utcoffset() == before else (early, middle)
    return late.replace(microsecond=0)
