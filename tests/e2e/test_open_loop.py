"""Open-loop questions as a user asks them, against a server whose largest rate follows from arithmetic."""

from pathlib import Path
from typing import Any

import pytest

from deployctl.simulator.process import running_simulator
from deployctl.simulator.scenario import Scenario

pytestmark = pytest.mark.e2e

# Three slots, each answer takes 0.48 s: evenly spaced requests never wait up to 3 / 0.48 = 6.25 a second, and wait ever
# longer beyond that.
SCENARIO: dict[str, Any] = {
    "name": "three-slots",
    "server": {"slots": 3, "prefill_tokens_per_s": 100_000, "decode_tokens_per_s": [100.0, 200.0, 300.0]},
    "workload": {
        "prompt_tokens": {"dist": "constant", "mean": 40},
        "output_tokens": {"dist": "constant", "mean": 48},
        "think_s": {"dist": "constant", "mean": 0},
    },
    "slo": {"ttft_s": 0.08, "attainment": 0.9},
}
WORKLOADS = """
even:
  title: Equal requests
  prompt_tokens: 40
  output_tokens: 48
  think_s: 0
  timeout_s: 10
burst:
  title: All at once
  log: loadtests/burst.jsonl
  speed: 2
  prompt_tokens: 40
  output_tokens: 48
  think_s: 0
  timeout_s: 10
"""
SLOS = """
prompt:
  title: No waiting
  ttft_s: 0.36
  attainment: 0.9
"""


def test_rates_and_logs_get_the_answers_that_arithmetic_gives(shell: Any, tmp_path: Path, root: Path) -> None:
    for folder in ("inventory", "loadtests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "inventory" / "workloads.yml").write_text(WORKLOADS)
    (tmp_path / "inventory" / "slos.yml").write_text((root / "inventory" / "slos.yml").read_text() + SLOS)
    # At twice the speed: three at once, three more half of an answer later (they wait 0.24 s for a slot), three a
    # second later (slots are free), and a tenth right after them (it waits 0.47 s: a miss).
    arrivals = [0.0] * 3 + [0.48] * 3 + [2.48] * 3 + [2.5]
    lines = [f'{{"arrival_s": {at}, "prompt_tokens": 40, "output_tokens": 48}}' for at in arrivals]
    (tmp_path / "loadtests" / "burst.jsonl").write_text("\n".join(lines))
    (tmp_path / "inventory" / "plans.yml").write_text("{}")
    with running_simulator(Scenario.model_validate(SCENARIO)) as url:

        def ask(*words: str) -> Any:
            common = ("test", "--json", "--url", url, "--model", "sim:latest", "--slots", "3", "--slo", "prompt")
            return shell.run(*common, *words)

        held = ask("--workload", "even", "--rate", "5", "--arrivals", "constant")
        broken = ask("--workload", "even", "--rate", "9", "--arrivals", "constant")
        log = ask("--workload", "burst")
    assert held.code == 0, held.err
    assert (held.document["status"], held.document["certified_rate_per_s"]) == ("pass", 5)
    assert held.document["load_generator"] == "one process"
    assert held.document["conditions"]["way_to_server_ms"] > 0
    (probe,) = held.document["probes"]
    assert probe["attainment"] == 1
    assert probe["e2e_s"]["p50"] == pytest.approx(0.48, abs=0.1)
    assert broken.code == 1, broken.err
    assert (broken.document["status"], broken.document["certified_rate_per_s"]) == ("fail", None)
    assert log.code == 0, log.err
    assert (log.document["status"], log.document["confidence"]) == ("pass", None)
    (probe,) = log.document["probes"]
    assert (probe["requests"], probe["attainment"]) == (10, 0.9)
    assert log.document["arrivals"]["speed"] == 2
    assert Path(shell.data_dir / "open-loop").is_dir()
