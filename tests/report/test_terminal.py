from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from deployctl.records.schema import Record
from deployctl.records.store import RunEntry
from deployctl.report import terminal, words

Example = Callable[[str], Record]


def shown(renderable: object, width: int = 80, encoding: str = "utf-8", *, colour: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    system = "truecolor" if colour else None
    Console(file=file, width=width, force_terminal=colour, color_system=system).print(renderable)  # type: ignore[arg-type]
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_80_columns_or_the_terminal(any_example: Record, width: int) -> None:
    lines = shown(terminal.render(any_example), width).splitlines()
    assert max(cell_len(line) for line in lines) <= min(80, width)


def test_the_answer_is_the_first_line(example: Example) -> None:
    assert shown(terminal.render(example("certified"))).splitlines()[0] == "cpu-32gb serves 11 users of llama3.1:8b"


def test_a_terminal_of_plain_ascii_gets_plain_ascii(any_example: Record) -> None:
    text = shown(terminal.render(any_example), encoding="ascii")
    assert words.clean(any_example.run_id) in text


def test_every_probe_has_its_line_with_verdict_and_figures(example: Example) -> None:
    lines = shown(terminal.render(example("certified"))).splitlines()
    found = [line.split() for line in lines if "✓ pass" in line or "✗ fail" in line or "? not decided" in line]
    assert [(row[0], row[1]) for row in found] == [
        ("1", "✓"), ("4", "✓"), ("8", "✓"), ("11", "✓"), ("12", "?"), ("13", "✗"), ("16", "✗"),
    ]  # fmt: skip
    assert found[3][-5:] == ["4.3", "s", "170", "ms", "34.1"]


def test_why_a_probe_is_invalid_is_said(example: Example) -> None:
    text = shown(terminal.render(example("invalid")), width=200)
    assert "CPU steal was 23 % of the probe" in text


@pytest.mark.parametrize("colour", [False, True])
def test_hostile_names_neither_control_the_terminal_nor_act_as_markup(example: Example, colour: bool) -> None:
    text = shown(terminal.render(example("hostile")), colour=colour)
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "[bold red]q4[/bold red]" in text.replace("\n", " ")
    if not colour:
        assert "\x1b" not in text


def test_the_list_of_runs_fits_80_columns_and_shows_what_is_broken(example: Example) -> None:
    names = ("certified", "at_least", "not_met", "inconclusive", "invalid", "minimal", "hostile")
    entries = [RunEntry(example(name).run_id, Path(name), "finished", example(name)) for name in names]
    entries.append(RunEntry("20261201T000000Z-aaaa", Path("a"), "running"))
    entries.append(RunEntry("20261202T000000Z-bbbb", Path("b"), "broken", problem="b/record.json is not JSON: [red]x"))
    text = shown(terminal.runs(entries))
    lines = text.splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    assert next(line for line in lines if line.startswith("20261112T091503Z-4f3a")).split()[1:] == [
        "cpu-32gb", "llama3.1:8b", "11–12", "certified",
    ]  # fmt: skip
    assert "≥ 128" in text
    assert "running" in text
    assert "[red]x" in " ".join(text.split())


def test_an_empty_list_of_runs_says_so() -> None:
    assert shown(terminal.runs([])) == "No runs yet.\n"
