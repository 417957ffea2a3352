"""Keeps on disk what a registry said of a model, for the next question and for the offline mode."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployctl.catalog.models import ModelEntry, Variant

FRESH_S = 24 * 3600.0
"""A tag of a registry moves when its maker puts out a new file: rarely, and never by the hour."""


@dataclass(frozen=True)
class Remembered:
    """The facts, and the exact size of other variants by name (None: the registry has no such tag)."""

    model: ModelEntry
    sizes: dict[str, Variant | None] = field(default_factory=dict)
    fresh: bool = True


@dataclass(frozen=True)
class Memo:
    """Answers of the registry at ``address``, one file each below ``folder``."""

    folder: Path
    address: str

    def remember(self, reference: str, heard: Remembered) -> None:
        """Keep an answer; a folder that cannot be written only costs the next question."""
        place = self._place(reference)
        document = {
            "facts": heard.model.model_dump(mode="json"),
            "sizes": {name: size and size.model_dump(mode="json") for name, size in heard.sizes.items()},
        }
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_suffix(f".{os.getpid()}.new")
            new.write_text(json.dumps(document), encoding="utf-8")
            new.replace(place)

    def recall(self, reference: str) -> Remembered | None:
        """Return what was kept, fresh or not; None where nothing readable was."""
        place = self._place(reference)
        try:
            age = time.time() - place.stat().st_mtime
            document: Any = json.loads(place.read_text(encoding="utf-8"))
            model = ModelEntry.model_validate(document["facts"])
            sizes = {name: size and Variant.model_validate(size) for name, size in document["sizes"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
            return None
        return Remembered(model, sizes, fresh=0 <= age < FRESH_S)

    def _place(self, reference: str) -> Path:
        digest = hashlib.sha256(f"{self.address}\n{reference.strip().lower()}".encode()).hexdigest()
        return self.folder / "facts" / f"{digest[:32]}.json"
