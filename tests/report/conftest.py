"""The invented example records, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deployctl.records.schema import Record, parse_record

DATA = Path(__file__).parents[1] / "records" / "data" / "v1"
NAMES = sorted(path.stem for path in DATA.glob("*.json"))


@pytest.fixture
def data_dir() -> Path:
    return DATA


@pytest.fixture
def example() -> Callable[[str], Record]:
    return lambda name: parse_record((DATA / f"{name}.json").read_bytes(), source=name)


@pytest.fixture(params=NAMES)
def any_example(request: pytest.FixtureRequest) -> Record:
    return parse_record((DATA / f"{request.param}.json").read_bytes(), source=request.param)
