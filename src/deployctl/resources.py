"""Where playbooks, templates, loadtests and inventory files are found: the user's project first, then what ships.

A folder of the same name in the project directory overrides the shipped one file by file.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("playbooks", "templates", "loadtests", "inventory")


def shipped_root() -> Path:
    """Return the folder that holds the four shipped folders: inside the wheel, or the source checkout."""
    packaged = Path(__file__).parent / "_resources"
    return packaged if packaged.is_dir() else Path(__file__).parents[2]


@dataclass(frozen=True)
class Project:
    """A directory of overrides on top of the shipped resources."""

    root: Path

    def path(self, name: str) -> Path:
        """Return the file for ``folder/name``: the project's own where it exists, else the shipped one.

        Raises FileNotFoundError when neither exists.
        """
        for base in (self.root, shipped_root()):
            candidate = base / name
            if candidate.is_file():
                return candidate
        raise FileNotFoundError(f"no {name} in {self.root} nor among the shipped files")

    def overrides(self, name: str) -> bool:
        """Say whether the project replaces the shipped file ``name``."""
        return (self.root / name).is_file() and (self.root / name).resolve() != (shipped_root() / name).resolve()

    def materialise(self, folder: str, destination: Path) -> Path:
        """Copy the merged ``folder`` (shipped, then the project's files over it) into ``destination/folder``."""
        if folder not in FOLDERS:
            raise ValueError(f"not a resource folder: {folder}")
        target = destination / folder
        for base in (shipped_root(), self.root):
            source = base / folder
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        return target
