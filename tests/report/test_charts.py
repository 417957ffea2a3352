from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from deployctl.records.schema import Record
from deployctl.report import charts, svg

Example = Callable[[str], Record]
SVG = "{http://www.w3.org/2000/svg}"


def parse(drawing: Markup | None) -> ElementTree.Element:
    assert drawing is not None
    return ElementTree.fromstring(str(drawing))


def test_every_chart_of_every_example_is_well_formed_and_inside_its_frame(any_example: Record) -> None:
    drawn = [chart(any_example) for chart in (charts.attainment, charts.ttft, charts.tpot, charts.throughput)]
    for drawing in filter(None, drawn):
        root = parse(drawing)
        xs = [float(e.attrib[k]) for e in root.iter() for k in ("x", "x1", "x2", "cx") if k in e.attrib]
        ys = [float(e.attrib[k]) for e in root.iter() for k in ("y", "y1", "y2", "cy") if k in e.attrib]
        assert min(xs) >= 0
        assert max(xs) <= svg.WIDTH
        assert min(ys) >= 0
        assert max(ys) <= svg.HEIGHT


def test_the_attainment_chart_has_one_mark_per_probe_and_the_target_line(example: Example) -> None:
    root = parse(charts.attainment(example("certified")))
    assert [group.attrib["class"] for group in root.iter("g")] == [
        "pass", "pass", "pass", "fail", "inconclusive", "pass", "fail",
    ]  # fmt: skip
    target = next(line for line in root.iter("line") if line.attrib.get("class") == "target")
    assert target.attrib["y1"] == target.attrib["y2"]
    eleven = next(group for group in root.iter("g") if (group.findtext("title") or "").startswith("11 users"))
    low, high = sorted(float(eleven.findall("line")[0].attrib[key]) for key in ("y1", "y2"))
    # 11 users passed: the whole interval, and so its lower end (the larger y), lies above the target line.
    assert low < high < float(target.attrib["y1"])


def test_a_failed_level_lies_below_the_target_line(example: Example) -> None:
    root = parse(charts.attainment(example("certified")))
    target = next(line for line in root.iter("line") if line.attrib.get("class") == "target")
    sixteen = next(group for group in root.iter("g") if (group.findtext("title") or "").startswith("16 users"))
    ends = [float(sixteen.findall("line")[0].attrib[key]) for key in ("y1", "y2")]
    assert min(ends) > float(target.attrib["y1"])


def test_infinite_percentiles_are_drawn_as_infinite_and_said_so(example: Example) -> None:
    record = example("certified")
    last = record.probes[3]
    assert last.ttft_s is not None
    broken = last.model_copy(update={"ttft_s": last.ttft_s.model_copy(update={"p99": None})})
    probes = (*record.probes[:3], broken)
    root = parse(charts.ttft(record.model_copy(update={"probes": probes})))
    signs = [text for text in root.iter("text") if "infinite" in text.attrib["class"]]
    assert [sign.findtext("title") for sign in signs] == ["16 users: p99 ∞"]


def test_a_curve_needs_two_valid_levels(example: Example) -> None:
    assert charts.ttft(example("not_met")) is None
    assert charts.ttft(example("minimal")) is None
    assert charts.attainment(example("minimal")) is None
    invalid = parse(charts.attainment(example("invalid")))
    assert len(list(invalid.iter("g"))) == 3
    assert charts.ttft(example("invalid")) is None


def test_elements_escape_their_content_and_attributes() -> None:
    made = svg.element("text", '</text><script>"', aria_label='"><b>')
    assert str(made) == '<text aria-label="&#34;&gt;&lt;b&gt;">&lt;/text&gt;&lt;script&gt;&#34;</text>'


@pytest.mark.parametrize(("least", "step"), [(0.011, 0.02), (0.2, 0.2), (1.0, 1.0), (3.0, 5.0), (60.0, 100.0)])
def test_ticks_are_round_numbers(least: float, step: float) -> None:
    assert svg.round_step(least) == pytest.approx(step)


def test_a_linear_scale_places_its_ends_and_labels_round_values() -> None:
    scale = svg.linear(0, 17, 50, 400, lambda value: f"{value:g}")
    assert scale.place(0) == 50
    assert scale.place(17) == 400
    assert [label for _, label in scale.ticks] == ["0", "5", "10", "15"]


def test_a_logarithmic_scale_has_ticks_at_one_two_and_five() -> None:
    scale = svg.logarithmic(1, 50, 200, 0, lambda value: f"{value:g}")
    assert [label for _, label in scale.ticks] == ["1", "2", "5", "10", "20", "50"]
    assert scale.place(50) == pytest.approx(0)


def test_labels_that_would_overlap_are_moved_apart_and_stay_inside() -> None:
    placed = svg.spread([95, 96, 97], 13, 0, 100)
    assert placed == [74, 87, 100]
    assert svg.spread([10, 50, 90], 13, 0, 100) == [10, 50, 90]


def test_no_number_is_drawn_as_not_a_number(any_example: Record) -> None:
    for chart in (charts.attainment, charts.ttft, charts.tpot, charts.throughput):
        assert not re.search(r"\b(nan|inf)\b", str(chart(any_example) or ""))
