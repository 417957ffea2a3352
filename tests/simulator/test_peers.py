"""What benchmarks/peers.py reads of what each tool left behind: recorded from real runs, shortened."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, scenarios_folder: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(scenarios_folder.parent))
    return importlib.import_module("peers")


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / name).read_text())
    return found


def test_aiperf_has_grown_to_one_user_when_the_budget_ends_it(peers: ModuleType) -> None:
    assert peers.read_aiperf(recorded("aiperf-unfinished.json")) == peers.Answer(1, None, "unfinished, 1 levels", False)


def test_an_aiperf_whose_runs_all_failed_has_measured_nothing_and_not_zero_users(peers: ModuleType) -> None:
    found = peers.read_aiperf(recorded("aiperf-failed.json"))
    assert (found.users, found.fails_at, found.done) == (None, None, False)
    assert found.said == "smooth_isotonic_no_pass_in_range, 1 levels; nothing measured at 1"


def test_a_search_of_ours_that_proved_nothing_is_no_answer(peers: ModuleType) -> None:
    found = peers.read_deployctl(recorded("deployctl-inconclusive.json"))
    assert found == peers.Answer(None, None, "inconclusive, 3 probes", False)


def test_guidellm_has_converged_on_one_user_more_than_that_host_holds(peers: ModuleType) -> None:
    found = peers.read_guidellm(recorded("guidellm-converged.json"))
    assert found == peers.Answer(7, 8, "converged, 4 levels, 1 unresolved", True)
