"""How a record of an older schema version becomes one of the next: one pure function per version, kept for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deployctl.errors import RecordError

Document = dict[str, Any]
Migration = Callable[[Document], Document]


def _several_files_of_samples(document: Document) -> Document:
    """1 to 2: a run may have more than one file of raw requests. (The digest, new as well, is checked, not made up.)"""
    only = document.get("samples")
    return {**document, "samples": [] if only is None else [only]}


# From version n to n + 1, by n.
MIGRATIONS: dict[int, Migration] = {1: _several_files_of_samples}


def upgrade(
    document: Document,
    *,
    to_version: int,
    source: str = "record",
    registry: Mapping[int, Migration] = MIGRATIONS,
) -> Document:
    """Bring ``document`` to schema version ``to_version`` and return it; the argument is left as it is.

    Raises RecordError when the version is missing, newer than ``to_version``, or has no way up.
    """
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(f"{source} is not a record: it has no schema_version")
    if version > to_version:
        raise RecordError(
            f"{source} has schema version {version}; this deployctl reads up to {to_version}",
            hint="pip install --upgrade deployctl",
        )
    current = dict(document)
    while version < to_version:
        step = registry.get(version)
        if step is None:
            raise RecordError(f"{source} has schema version {version}, and no migration leads from it to {version + 1}")
        current = {**step(dict(current)), "schema_version": version + 1}
        version += 1
    return current
