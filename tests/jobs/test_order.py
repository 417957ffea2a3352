"""Budgets as people write them, and the order that the catalogue makes of a wish."""

from pathlib import Path

import pytest

from deployctl.catalog.load import load_catalog
from deployctl.errors import UsageError
from deployctl.jobs.order import ask, read_budget, resolve
from deployctl.jobs.wanted import Wanted
from deployctl.resources import Project


@pytest.mark.parametrize(
    ("text", "seconds"), [("2m", 120.0), ("90s", 90.0), ("1h30m", 5400.0), ("45", 45.0), ("1.5m", 90.0)]
)
def test_a_duration_is_a_budget_in_seconds(text: str, seconds: float) -> None:
    assert read_budget(text).seconds == seconds


@pytest.mark.parametrize("mode", ["quick", "standard", "certify"])
def test_a_mode_leaves_the_time_open(mode: str) -> None:
    assert (read_budget(mode).mode, read_budget(mode).seconds) == (mode, None)


@pytest.mark.parametrize("text", ["", "soon", "-5", "0", "nan", "inf", "5x", "1e99"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a budget"):
        read_budget(text)


def test_the_plan_fills_in_slo_and_workload(tmp_path: Path) -> None:
    catalog = load_catalog(Project(tmp_path))
    question = resolve(Wanted(model="gemma3:270m", plan="sandbox"), catalog).question
    assert (question.slo.name, question.workload.name) == ("demo", "demo")
    asked = resolve(Wanted(model="gemma3:270m", plan="sandbox", slo="chat", workload="batch"), catalog).question
    assert (asked.slo.name, asked.workload.name) == ("chat", "batch")


def test_without_a_plan_the_question_is_about_chat(tmp_path: Path) -> None:
    question = ask(Wanted(model="any:thing"), load_catalog(Project(tmp_path)), None)
    assert (question.slo.name, question.workload.name) == ("chat", "chat")
