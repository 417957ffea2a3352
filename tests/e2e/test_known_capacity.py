"""The whole measurement over real sockets, against a server whose capacity follows from arithmetic."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployctl.simulator.process import running_simulator
from deployctl.simulator.scenario import Scenario

pytestmark = pytest.mark.e2e

# Three slots; an answer of 48 tokens takes 0.48 s whether one or three are being written; nobody thinks. Three users
# never wait: first token after some 12 ms. Of four, each finds all slots taken and waits for the next to be free,
# 0.48 / 3 = 0.16 s. With the threshold at 0.08 s the capacity is three, exactly.
SLOTS = 3
SCENARIO: dict[str, Any] = {
    "name": "three-slots",
    "server": {"slots": SLOTS, "prefill_tokens_per_s": 100_000, "decode_tokens_per_s": [100.0, 200.0, 300.0]},
    "workload": {
        "prompt_tokens": {"dist": "constant", "mean": 40},
        "output_tokens": {"dist": "constant", "mean": 48},
        "think_s": {"dist": "constant", "mean": 0},
    },
    "slo": {"ttft_s": 0.08, "attainment": 0.9},
}
WORKLOADS = """
eager:
  title: Nobody thinks
  prompt_tokens: {dist: constant, mean: 40}
  output_tokens: {dist: constant, mean: 48}
  think_s: {dist: constant, mean: 0}
  timeout_s: 10
"""
SLOS = """
prompt:
  title: No waiting
  ttft_s: 0.08
  attainment: 0.9
"""


def test_a_server_that_dies_in_mid_search_is_lost_and_not_slow(
    shell: Any, tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    err = tmp_path / "stderr"
    with running_simulator(Scenario.model_validate(SCENARIO)) as url, err.open("w") as sink:
        words = ("test", "--url", url, "--model", "sim:latest", "--workload", "demo", "--slo", "demo", "--budget", "5m")
        child = subprocess.Popen(
            [*shell.command, "--data-dir", str(shell.data_dir), *words],
            stdout=subprocess.DEVNULL,
            stderr=sink,
            cwd=shell.cwd,
            env=shell.env,
            start_new_session=True,
        )
        try:
            wait_for(lambda: "within the SLO" in err.read_text() or child.poll() is not None, "the first looks")
            assert child.poll() is None, err.read_text()
        except BaseException:
            child.kill()
            raise
    try:
        assert child.wait(timeout=90) == 3, err.read_text()
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    assert "does not serve" not in err.read_text()


def test_a_server_of_three_slots_holds_three_users_who_never_think(shell: Any, tmp_path: Path, root: Path) -> None:
    inventory = tmp_path / "inventory"
    inventory.mkdir()
    (inventory / "workloads.yml").write_text((root / "inventory" / "workloads.yml").read_text() + WORKLOADS)
    (inventory / "slos.yml").write_text((root / "inventory" / "slos.yml").read_text() + SLOS)
    with running_simulator(Scenario.model_validate(SCENARIO)) as url:
        answer = shell.run(
            *("test", "--json", "--url", url, "--model", "sim:latest", "--slots", str(SLOTS)),
            *("--workload", "eager", "--slo", "prompt", "--budget", "2m"),
        )
    assert answer.code == 0, answer.err
    record = answer.document
    assert record["capacity"]["status"] == "certified"
    assert record["capacity"]["certified_users"] == SLOTS
    assert record["capacity"]["at_most_users"] == SLOTS
    assert record["capacity"]["limited_by"] == "ttft"
    # The server's own arithmetic: 48 tokens at 100 tokens/s.
    assert record["baseline"]["decode_tokens_per_s"] == pytest.approx(100, rel=0.05)
