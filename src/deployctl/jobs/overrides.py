"""Saying which files of the user's project run in place of ours: some of them are programs."""

from __future__ import annotations

from deployctl.events import Emit, Warned
from deployctl.resources import Project, shipped_root

PROGRAMS = ("playbooks", "loadtests", "templates")


def announce(project: Project, emit: Emit) -> None:
    """Warn of every folder with programs that the project brings along; the shipped ones are no news."""
    if project.root.resolve() == shipped_root().resolve():
        return
    for folder in PROGRAMS:
        files = [path for path in (project.root / folder).rglob("*") if path.is_file()]
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            emit(Warned(f"using {files[0].relative_to(project.root)}{more} of {project.root} in place of ours"))
