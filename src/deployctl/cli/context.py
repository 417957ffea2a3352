"""The global options as one frozen value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from deployctl.errors import UsageError
from deployctl.resources import Project

UNUSABLE = frozenset("%\"'${}\\")
"""What ssh_config, a shell or Jinja reads as more than a character; the data directory's path is told to all three."""


@dataclass(frozen=True)
class Globals:
    """What every command is told: how to speak, where to look, where to keep things."""

    json: bool
    dry_run: bool
    diff: bool
    verbose: int
    project: Project
    data_dir: Path

    @classmethod
    def of(
        cls, *, json: bool, dry_run: bool, diff: bool, verbose: int, project: Path | None, data_dir: Path | None
    ) -> Globals:
        """Fill in the defaults: the working directory, and the user's data directory."""
        if project is not None and not project.is_dir():
            raise UsageError(f"--project {project} is not a folder")
        where = (data_dir or _default_data_dir()).expanduser().absolute()
        if set(str(where)) & UNUSABLE or not str(where).isprintable():
            raise UsageError(f"--data-dir {str(where)!r}: ssh and Ansible would read some of these characters as code")
        return cls(
            json=json,
            dry_run=dry_run,
            diff=diff,
            verbose=verbose,
            project=Project((project or Path.cwd()).absolute()),
            data_dir=where,
        )

    @property
    def cache_dir(self) -> Path:
        """Where what can be rebuilt is kept: engine archives, assembled model files."""
        override = os.environ.get("DEPLOYCTL_CACHE")
        return Path(override).expanduser().absolute() if override else self.data_dir / "cache"


def _default_data_dir() -> Path:
    from platformdirs import user_data_path

    return user_data_path("deployctl")
