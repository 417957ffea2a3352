"""What all catalogue entries share: frozen, and nothing unknown is accepted."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Entry(BaseModel):
    """One typed entry of an inventory file, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)
