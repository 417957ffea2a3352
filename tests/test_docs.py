"""The documents say what the program does."""

import importlib.util
import inspect
import json
import re
import subprocess
from pathlib import Path

import pytest

from deployctl import errors
from deployctl.cli.app import COMMANDS

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


def test_the_readme_lists_every_command_in_the_words_of_the_help(readme: str) -> None:
    rows = dict(re.findall(r"^\| `deployctl ([a-z-]+)` \| (.+) \|$", readme, re.MULTILINE))
    plain = {name: line.replace("`", "") for name, line in rows.items()}
    assert plain == {name: line for name, (_, line) in COMMANDS.items()}


def test_the_readme_lists_every_exit_code(readme: str) -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \| ", readme, re.MULTILINE)}
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert listed == {0, *(kind.exit_code for kind in kinds)}


def test_the_figures_of_the_search_are_those_of_its_results(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("proof", root / "benchmarks" / "search.py")
    assert spec is not None
    assert spec.loader is not None
    proof = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(proof)
    shown = (root / "docs" / "search.md").read_text(encoding="utf-8").split("<!-- search -->\n")[1]
    results = json.loads(proof.RESULTS.read_text(encoding="utf-8"))
    assert shown.split("\n<!-- /search -->")[0] == proof.table(results)
    assert proof.FIGURE.read_text(encoding="utf-8") == proof.figure(results)


def test_links_lead_somewhere(root: Path) -> None:
    documents = [root / name for name in DOCUMENTS] + sorted((root / "docs").rglob("*.md"))
    broken = [
        f"{document.name}: {link}"
        for document in documents
        for link in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
        if not link.startswith(("http://", "https://")) and not (document.parent / link).exists()
    ]
    assert broken == []


def test_every_role_quotes_all_its_defaults(root: Path) -> None:
    roles = sorted((root / "playbooks" / "roles").iterdir())
    assert roles
    for role in roles:
        defaults = role / "defaults" / "main.yml"
        names = re.findall(r"^([a-z_0-9]+):", defaults.read_text(), re.MULTILINE) if defaults.is_file() else []
        text = (role / "README.md").read_text(encoding="utf-8")
        assert [name for name in names if f"`{name}`" not in text and f"{name}:" not in text] == [], role.name


def test_the_targets_that_the_documents_name_exist(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for name in ("README.md", "CONTRIBUTING.md")
        for target in re.findall(r"\bmake ([a-z]+)", (root / name).read_text(encoding="utf-8"))
        if target not in {"a", "what"}
    }
    assert named
    assert named <= targets


def test_the_tree_names_no_path_of_the_machine_it_was_written_on(root: Path) -> None:
    listed = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True).stdout
    here = str(root).encode()
    guilty = [name for name in listed.splitlines() if (root / name).is_file() and here in (root / name).read_bytes()]
    assert guilty == []
