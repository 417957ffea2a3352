from __future__ import annotations

import re
from collections.abc import Callable

from deployctl.records.schema import Record
from deployctl.report import markdown

Example = Callable[[str], Record]


def test_the_answer_is_the_first_line(example: Example) -> None:
    assert markdown.render(example("certified")).startswith("# cpu-32gb serves 11 users of llama3.1:8b\n")


def test_every_table_row_has_as_many_cells_as_its_header(any_example: Record) -> None:
    rows = [line for line in markdown.render(any_example).splitlines() if line.startswith("|")]
    blocks = {len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows}
    assert blocks <= {8, 2}


def test_no_text_of_a_record_becomes_markup(example: Example) -> None:
    text = markdown.render(example("hostile"))
    assert not re.search(r"(?<!\\)[<>`\[]", text)
    assert "http://" not in text
    assert "\\<script\\>alert(1)\\</script\\>" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)


def test_no_text_of_a_record_begins_a_line(any_example: Record) -> None:
    starts = {line[:1] for line in markdown.render(any_example).splitlines()}
    allowed = {"", "#", "|", "-", "*"}
    prose = [line for line in markdown.render(any_example).splitlines() if line[:1] not in allowed]
    assert starts & allowed == starts - {line[:1] for line in prose}
    assert all(re.match(r"(With|Measured|No |Nothing|The plan|Total|At |\d+ user)", line) for line in prose)
