"""Scenarios that several tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployctl.simulator.scenario import Scenario, load_scenario, parse_scenario

SCENARIOS = Path(__file__).parents[2] / "benchmarks" / "scenarios"


@pytest.fixture
def scenarios_folder() -> Path:
    return SCENARIOS


@pytest.fixture
def reference() -> Scenario:
    return load_scenario(SCENARIOS / "reference.yml")


@pytest.fixture
def make_scenario() -> Callable[..., Scenario]:
    """Build a small scenario: two slots, 100 prompt tokens/s, decode 10 and 16 tokens/s; keywords change the server."""

    def make(workload: dict[str, Any] | None = None, slo: dict[str, Any] | None = None, **server: Any) -> Scenario:
        base = {"slots": 2, "prefill_tokens_per_s": 100, "decode_tokens_per_s": [10.0, 16.0]}
        constant = {"dist": "constant", "mean": 20}
        lengths = {"prompt_tokens": constant, "output_tokens": constant, "think_s": constant}
        return parse_scenario(
            {
                "name": "small",
                "server": base | server,
                "workload": lengths | (workload or {}),
                "slo": slo or {"ttft_s": 5.0},
            }
        )

    return make
