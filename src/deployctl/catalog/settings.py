"""Settings of a project: inventory/settings.yml, an optional file of single values."""

from __future__ import annotations

from deployctl.catalog.base import Entry
from deployctl.catalog.reading import line_of, read_entries, shown
from deployctl.errors import CatalogError
from deployctl.resources import Project

SECTION = "models"


class Models(Entry):
    """Where the facts of models come from.

    ``registry`` is the address of Ollama's registry or of a mirror with its scheme; plain HTTP has to be written.
    """

    section: str = SECTION
    registry: str | None = None
    offline: bool = False


def read_models_settings(project: Project) -> Models:
    """Return the section ``models`` of the project's settings, or the defaults. Raises CatalogError."""
    try:
        path = project.path("inventory/settings.yml")
    except FileNotFoundError:
        return Models()
    sections = read_entries(path, Models, "section", "section")
    for name in sections:
        if name != SECTION:
            raise CatalogError(
                f"{shown(path)}:{line_of(path, (name,))}: unknown section '{name}'; did you mean '{SECTION}'?",
                hint=f"edit {shown(path)}",
            )
    return sections.get(SECTION, Models())
