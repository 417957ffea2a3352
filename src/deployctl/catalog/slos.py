"""SLOs by name: thresholds on one request, and the share of requests that must meet all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from deployctl.catalog.base import Entry

if TYPE_CHECKING:
    from deployctl.capacity.probe import Slo


class SloEntry(Entry):
    """Thresholds in seconds (absent: not asked) and the attainment in (0, 1)."""

    name: str
    title: str
    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)
    e2e_s: float | None = Field(default=None, gt=0)
    attainment: float = Field(default=0.95, gt=0, lt=1)

    @model_validator(mode="after")
    def _asks_something(self) -> SloEntry:
        if self.ttft_s is None and self.tpot_s is None and self.e2e_s is None:
            raise ValueError("an SLO needs at least one of ttft_s, tpot_s and e2e_s")
        return self

    def to_slo(self) -> Slo:
        """Return what the capacity search works with."""
        from deployctl.capacity.probe import Slo

        return Slo(ttft_s=self.ttft_s, tpot_s=self.tpot_s, e2e_s=self.e2e_s, attainment=self.attainment)
