"""The shipped folders, and a project's files over them."""

from pathlib import Path

import pytest

from deployctl.resources import FOLDERS, Project, shipped_root


def test_the_four_folders_ship() -> None:
    assert all((shipped_root() / folder).is_dir() for folder in FOLDERS)


def test_a_project_file_wins_and_the_rest_still_ships(tmp_path: Path) -> None:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "plans.yml").write_text("mine: {}\n")
    project = Project(tmp_path)
    assert project.path("inventory/plans.yml").read_text() == "mine: {}\n"
    assert project.overrides("inventory/plans.yml")
    assert project.path("inventory/models.yml") == shipped_root() / "inventory" / "models.yml"
    assert not project.overrides("inventory/models.yml")


def test_a_merged_folder_has_both(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "inventory").mkdir(parents=True)
    (project / "inventory" / "plans.yml").write_text("mine: {}\n")
    merged = Project(project).materialise("inventory", tmp_path / "out")
    assert (merged / "plans.yml").read_text() == "mine: {}\n"
    assert (merged / "models.yml").read_bytes() == (shipped_root() / "inventory" / "models.yml").read_bytes()


def test_a_file_that_nobody_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"inventory/none\.yml"):
        Project(tmp_path).path("inventory/none.yml")
