"""Finds the facts of any model: from the host, the registry, a local file or the shipped catalogue, in this order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import ModelEntry
from deployctl.errors import ModelUnavailable
from deployctl.sizing.gguf import model_info, read_file
from deployctl.sizing.registry import Registry
from deployctl.sizing.show import from_show

Origin = Literal["host", "registry", "cache", "file", "catalogue"]


@dataclass(frozen=True)
class Found:
    """A model's facts, where they come from, and what was tried before without luck."""

    model: ModelEntry
    origin: Origin
    notes: tuple[str, ...] = ()


def find(
    reference: str,
    catalog: Catalog,
    *,
    show: Callable[[str], Mapping[str, Any] | None] | None = None,
    registry: Registry | None = None,
    gguf: Path | None = None,
    cache: Path | None = None,
) -> Found:
    """Return the facts of ``reference``.

    ``show`` asks the host's /api/show and returns its answer, or None where the host lacks the model. ``registry`` None
    is the offline mode: the cache of earlier answers (a directory) stands in for it. Raises ModelUnavailable, with the
    nearest names of the catalogue, when nobody knows the model.
    """
    notes: list[str] = []
    answer = show(reference) if show is not None else None
    if answer is not None:
        details = answer.get("details") or {}
        facts = from_show(
            answer.get("model_info") or {}, name=reference, quantization=details.get("quantization_level")
        )
        return Found(facts, "host")
    if registry is not None:
        try:
            facts = registry.facts(reference)
        except ModelUnavailable as error:
            notes.append(error.message)
        else:
            _remember(cache, reference, facts)
            return Found(facts, "registry")
    remembered = _recall(cache, reference)
    if remembered is not None:
        return Found(remembered, "cache", tuple(notes))
    if gguf is not None:
        return Found(from_file(gguf, reference), "file", tuple(notes))
    try:
        return Found(catalog.model(reference), "catalogue", tuple(notes))
    except ModelUnavailable as error:
        raise ModelUnavailable("; ".join([error.message, *notes]), hint=error.hint) from error


def from_file(path: Path, name: str | None = None) -> ModelEntry:
    """Return the facts of a local GGUF file; its size is the file's. Raises ModelUnavailable."""
    header = read_file(path)
    entry = from_show(model_info(header), name=name or path.stem, size=path.stat().st_size - header.vision_bytes)
    return entry.model_copy(update={"projector_bytes": header.vision_bytes, "source": f"GGUF header of {path.name}"})


def _place(cache: Path, reference: str) -> Path:
    return cache / "facts" / f"{hashlib.sha256(reference.encode()).hexdigest()[:32]}.json"


def _remember(cache: Path | None, reference: str, facts: ModelEntry) -> None:
    if cache is None:
        return
    place = _place(cache, reference)
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(facts.model_dump_json(), encoding="utf-8")
    fresh.replace(place)


def _recall(cache: Path | None, reference: str) -> ModelEntry | None:
    if cache is None:
        return None
    try:
        return ModelEntry.model_validate(json.loads(_place(cache, reference).read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError):
        return None
