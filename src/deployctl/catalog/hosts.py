"""The user's own machines, as inventory/hosts.yml lists them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from deployctl.catalog.base import Entry


class HostEntry(Entry):
    """How to reach one machine by SSH, and the plan that it embodies."""

    name: str
    address: str = Field(min_length=1)
    port: int = Field(default=22, ge=1, le=65535)
    user: str = Field(default="root", min_length=1)
    key_file: Path | None = None
    plan: str | None = None
    python: str | None = None
    become: bool = True
