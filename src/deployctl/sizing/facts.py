"""Finds the facts of any model: from the host, the registry, a local file or the shipped catalogue, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import ModelEntry, Variant
from deployctl.errors import ModelUnavailable
from deployctl.sizing.gguf import model_info, read_file
from deployctl.sizing.memo import Memo, Remembered
from deployctl.sizing.registry import Registry, RegistryUnreachable
from deployctl.sizing.show import from_show

Origin = Literal["host", "registry", "cache", "file", "catalogue"]

SHAPE = ("layers", "embedding", "heads", "kv_heads_by_layer", "key_length", "value_length", "experts")
"""What two descriptions of one model cannot differ in."""


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
    memo: Memo | None = None,
) -> Found:
    """Return the facts of ``reference``.

    ``show`` asks the host's /api/show and returns its answer (with the file's ``size`` in bytes beside it, where it is
    known), or None where the host lacks the model. ``registry`` None is the offline mode. ``memo`` keeps what a
    registry said: a fresh answer spares the question, an old one serves where the registry cannot. Where the catalogue
    knows the same model, its other variants come along. Raises ModelUnavailable, with the nearest names of the
    catalogue, when nobody knows the model.
    """
    known = _known(catalog, reference)
    notes: list[str] = []
    answer = show(reference) if show is not None else None
    if answer is not None:
        return Found(joined(_shown(answer, reference), known), "host")
    if gguf is not None and registry is None:
        return Found(joined(from_file(gguf, reference), known), "file")
    remembered = memo.recall(reference) if memo is not None else None
    if remembered is not None and remembered.fresh:
        return Found(_complete(remembered, known), "cache")
    if registry is not None:
        try:
            heard = Remembered(registry.facts(reference), _sizes(registry, known))
        except ModelUnavailable as error:
            notes.append(error.message)
        else:
            if memo is not None:
                memo.remember(reference, heard)
            return Found(_complete(heard, known), "registry")
    if remembered is not None:
        return Found(_complete(remembered, known), "cache", tuple(notes))
    if gguf is not None:
        return Found(joined(from_file(gguf, reference), known), "file", tuple(notes))
    if known is not None:
        return Found(known, "catalogue", tuple(notes))
    try:
        catalog.model(reference)
    except ModelUnavailable as error:
        raise ModelUnavailable("; ".join([error.message, *notes]), hint=error.hint) from error
    raise ModelUnavailable(f"nobody knows {reference}", hint="deployctl models")


def from_file(path: Path, name: str | None = None) -> ModelEntry:
    """Return the facts of a local GGUF file; its size is the file's. Raises ModelUnavailable."""
    header = read_file(path)
    entry = from_show(model_info(header), name=name or path.stem, size=path.stat().st_size - header.vision_bytes)
    return entry.model_copy(update={"projector_bytes": header.vision_bytes, "source": f"GGUF header of {path.name}"})


def joined(found: ModelEntry, known: ModelEntry | None) -> ModelEntry:
    """Return the catalogue's entry with the size that was ``found``, or ``found`` alone where they are two models."""
    if known is None or any(getattr(found, key) != getattr(known, key) for key in SHAPE):
        return found
    size = found.variants[found.default]
    former = known.variants.get(found.default)
    if former is not None:
        size = size.model_copy(update={"tag": former.tag, "origin": former.origin})
    return known.model_copy(
        update={
            "variants": {**known.variants, found.default: size},
            "projector_bytes": found.projector_bytes or known.projector_bytes,
            "source": f"{found.source}; {known.source}",
        }
    )


def _known(catalog: Catalog, reference: str) -> ModelEntry | None:
    try:
        return catalog.model(reference)
    except ModelUnavailable:
        return None


def _shown(answer: Mapping[str, Any], reference: str) -> ModelEntry:
    details = answer.get("details") or {}
    size = answer.get("size")
    return from_show(
        answer.get("model_info") or {},
        name=reference,
        size=size if isinstance(size, int) and size > 0 else None,
        quantization=details.get("quantization_level"),
    )


def _sizes(registry: Registry, known: ModelEntry | None) -> dict[str, Variant | None]:
    """Return the registry's exact size of each variant that the catalogue lists; None for a tag that it lacks."""
    sizes: dict[str, Variant | None] = {}
    if known is None:
        return sizes
    for name, variant in known.variants.items():
        if variant.origin != "registry":
            continue
        try:
            sizes[name] = registry.variant(known.reference(name), tag=variant.tag)
        except RegistryUnreachable:
            break
        except ModelUnavailable:
            sizes[name] = None
    return sizes


def _complete(heard: Remembered, known: ModelEntry | None) -> ModelEntry:
    """Return what was heard, joined with the catalogue; a variant whose tag the registry lacks cannot be served."""
    entry = joined(heard.model, known)
    if entry is heard.model:
        return entry
    sizes = {name: size for name, size in heard.sizes.items() if name != heard.model.default}
    variants = {
        name: sizes.get(name) or variant
        for name, variant in entry.variants.items()
        if name not in sizes or sizes[name] is not None
    }
    default = entry.default if entry.default in variants else heard.model.default
    return entry.model_copy(update={"variants": variants, "default": default})
