from __future__ import annotations

import re
from pathlib import Path

import pytest

from deployctl.records import document
from deployctl.records.parts import CapacityStatus
from deployctl.records.schema import SCHEMA_VERSION, Record, schema_json

DOCUMENT = Path(__file__).parents[2] / "docs" / "record.md"


def test_the_document_equals_the_models() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert text == document.fill(text), "run: python -m deployctl.records.document docs"


def test_the_published_json_schema_equals_the_models() -> None:
    published = DOCUMENT.with_name(f"record-v{SCHEMA_VERSION}.schema.json").read_text("utf-8")
    assert published == schema_json(), "run: python -m deployctl.records.document docs"


def test_every_field_of_the_record_has_a_row_with_a_meaning() -> None:
    section = DOCUMENT.read_text("utf-8").partition("### The record")[2].partition("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", section, re.MULTILINE)
    assert [name for name, _ in rows] == [*Record.model_fields, *Record.model_computed_fields]
    assert all(meaning != "None" for _, meaning in rows)


def test_every_status_of_the_capacity_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert explained == list(CapacityStatus.__args__)  # type: ignore[attr-defined]


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="begin"):
        document.fill("# nothing here")
