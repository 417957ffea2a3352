from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from deployctl.records.schema import Record
from deployctl.report import html
from deployctl.resources import Project, shipped_root

Example = Callable[[str], Record]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would see: the elements, their attributes, and whether they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_answer_is_the_title_and_the_first_heading(example: Example, project: Project) -> None:
    text = html.render(example("certified"), project)
    assert "<title>cpu-32gb serves 11 users of llama3.1:8b</title>" in text
    assert "<h1>cpu-32gb serves 11 users of llama3.1:8b</h1>" in text


def test_every_example_gives_a_well_nested_page(any_example: Record, project: Project) -> None:
    page = Page(html.render(any_example, project))
    assert page.open == []
    assert [tag for tag, _ in page.elements].count("h1") == 1


def test_the_page_asks_for_nothing_and_runs_nothing(any_example: Record, project: Project) -> None:
    page = Page(html.render(any_example, project))
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"script", "img", "iframe", "object", "embed", "form", "base", "a", "foreignobject"})
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        links = {name: value for name, value in attributes.items() if name in ("src", "href", "xlink:href", "action")}
        assert links in ({}, {"href": "data:,"}), tag


def test_hostile_names_change_no_element_of_the_page(example: Example, project: Project) -> None:
    def skeleton(record: Record) -> list[str]:
        return [tag for tag, _ in Page(html.render(record, project)).elements]

    hostile = example("hostile")
    # The same record with every string harmless: the elements must be the same, one by one.
    tame = {name: value for name, value in _tame(json.loads(hostile.to_json())).items() if name != "digest"}
    harmless = type(hostile).model_validate_json(json.dumps(tame))
    assert skeleton(hostile) == skeleton(harmless)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html.render(hostile, project)


def test_templates_in_a_record_are_not_evaluated(example: Example, project: Project) -> None:
    text = html.render(example("hostile"), project)
    assert "{{7*7}}" in text
    assert ">49<" not in text


def test_terminal_and_bidi_controls_do_not_reach_the_page(example: Example, project: Project) -> None:
    text = html.render(example("hostile"), project)
    assert not any(mark in text for mark in ("\x1b", "\x07", "\x00", "\u202e"))


def test_every_figure_of_the_probes_is_in_the_page(example: Example, project: Project) -> None:
    text = " ".join(Page(html.render(example("certified"), project)).text)
    for figure in ("97.2 %", "95.1–98.6 %", "604", "187", "4.3 s", "6.4 s", "170 ms", "34.1", "9.0 min"):
        assert figure in text


def test_conditions_digest_and_what_is_not_proven_are_in_the_page(example: Example, project: Project) -> None:
    text = " ".join(Page(html.render(example("certified"), project)).text)
    for words in (
        "46e0c10c039e019119339687c3c1757cc81b9da49709a3b3924863ba87ca666e",
        "AMD EPYC 7543 32-Core Processor",
        "OLLAMA_NUM_PARALLEL",
        "0.30.2",
        "Other hosts of the same plan: one host was measured.",
        "Spanish and English prompts were mixed",
        "Keys and values (KV)",
        "2.0 GiB",
    ):
        assert words in text


def test_a_template_of_the_projects_own_replaces_the_shipped_one(example: Example, project: Project) -> None:
    own = project.root / "templates"
    own.mkdir()
    (own / "report.html.j2").write_text("<p>{{ answer.headline }}</p>{{ record.notes[0] }}")
    text = html.render(example("hostile"), project)
    assert text.startswith("<p>plan&#34;&gt;&lt;script&gt;")


def test_the_shipped_templates_are_where_the_wheel_takes_them_from() -> None:
    assert (shipped_root() / "templates" / "report.html.j2").is_file()
    assert (shipped_root() / "templates" / "report.css").is_file()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: layout and console are not checked in a browser")
@pytest.mark.parametrize("width", [400, 1100])
def test_in_a_browser_nothing_overflows_runs_or_complains(
    example: Example, project: Project, tmp_path: Path, width: int
) -> None:
    names = ["certified", "not_met", "invalid", "minimal", "hostile"]
    for name in names:
        (tmp_path / f"{name}.html").write_text(html.render(example(name), project), "utf-8")
    result, log = _measure(tmp_path, names, width)
    assert set(result) == set(names)
    for name in names:
        seen = result[name]
        assert seen["inner"] == width, name
        assert seen["scroll"] <= width, (name, seen["wide"])
        assert seen["height"] > 500, name
        assert seen["title"], name
    assert "CONSOLE" not in log


def _measure(folder: Path, names: list[str], width: int) -> tuple[dict[str, Any], str]:
    """Open the pages in frames of the given width; return what a script of the outer page sees, and Chromium's log."""
    frames = "".join(
        f'<iframe id="{n}" src="{n}.html" style="width:{width}px;height:900px;border:0"></iframe>' for n in names
    )
    script = """
      window.addEventListener("load", () => {
        const out = {};
        for (const frame of document.querySelectorAll("iframe")) {
          const inner = frame.contentDocument, root = inner.documentElement;
          const wide = [...inner.querySelectorAll("body *")].filter(
            (e) => !e.closest(".scroll > *, svg") && e.getBoundingClientRect().right > root.clientWidth + 0.5);
          out[frame.id] = {inner: frame.contentWindow.innerWidth, scroll: root.scrollWidth, height: root.scrollHeight,
                           title: inner.title, wide: wide.map((e) => e.tagName + "." + e.className).slice(0, 5)};
        }
        document.body.textContent = "RESULT" + btoa(unescape(encodeURIComponent(JSON.stringify(out)))) + "END";
      });
    """
    outer = folder / "outer.html"
    outer.write_text(
        f"<!doctype html><meta charset=utf-8><link rel=icon href='data:,'>{frames}<script>{script}</script>"
    )
    profile = folder / "profile"
    profile.mkdir()
    argv = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--allow-file-access-from-files", "--enable-logging=stderr", f"--user-data-dir={profile}", "--dump-dom",
        outer.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    encoded = done.stdout.partition("RESULT")[2].partition("END")[0]
    assert encoded, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(base64.b64decode(encoded))
    return result, done.stderr


def _tame(value: Any, key: str = "") -> Any:
    fixed = {"run_id", "started_at", "ended_at", "verdict", "status", "dist"}
    if isinstance(value, dict):
        return {(f"k{n}" if key in {"settings", "conditions", "timings", "failures"} else k): _tame(v, k)
                for n, (k, v) in enumerate(value.items())}  # fmt: skip
    if isinstance(value, list):
        return [_tame(entry, key) for entry in value]
    # Different strings stay different: rows and reasons that are equal would be shown once.
    return f"harmless{len(value)}" if isinstance(value, str) and value and key not in fixed else value
