"""A night against a real server of known capacity, by the command that a timer starts, and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployctl.nightly import journal
from deployctl.records.store import RunStore
from deployctl.simulator.process import running_simulator
from deployctl.simulator.scenario import parse_scenario

# Fast enough that a search takes seconds: eight slots, short answers, no pause.
SCENARIO = parse_scenario(
    {
        "name": "night",
        "server": {"slots": 4, "prefill_tokens_per_s": 20000, "decode_tokens_per_s": [400, 700, 900, 1100]},
        "workload": {
            "prompt_tokens": {"dist": "constant", "mean": 30},
            "output_tokens": {"dist": "constant", "mean": 20},
            "think_s": {"dist": "exponential", "mean": 0.3},
        },
        "slo": {"ttft_s": 0.5, "attainment": 0.8},
    }
)
WORKLOADS = """
quickly:
  title: Short and quick
  prompt_tokens: {dist: constant, mean: 30}
  output_tokens: {dist: constant, mean: 20}
  think_s: {dist: exponential, mean: 0.3}
  timeout_s: 20
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_simulator(SCENARIO) as served:
        yield served


@pytest.fixture
def project(tmp_path: Path, url: str) -> Path:
    folder = tmp_path / "project"
    (folder / "inventory").mkdir(parents=True)
    root = Path(__file__).parents[2] / "inventory"
    (folder / "inventory" / "workloads.yml").write_text((root / "workloads.yml").read_text() + WORKLOADS)
    group = {"url": url, "models": ["sim:latest"], "workloads": ["quickly"], "slo": "demo"}
    group["budget"] = "30s"
    away = {**group, "url": "http://127.0.0.1:9", "retries": 1}
    (folder / "inventory" / "nightly.yml").write_text(
        json.dumps({"one": group, "away": away, "closed": {**group, "slo": "chat", "window": _never()}})
    )
    return folder


def _never() -> dict[str, Any]:
    """A window that is not now: it begins in twelve hours and lasts one."""
    hour = (time.gmtime().tm_hour + 12) % 24
    return {"from": f"{hour:02}:00", "to": f"{(hour + 1) % 24:02}:00", "timezone": "UTC"}


def command(project: Path, data: Path, *words: str) -> list[str]:
    where = ["--json", "--project", str(project), "--data-dir", str(data)]
    return [sys.executable, "-m", "deployctl", *where, "nightly", *words]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DEPLOYCTL_")}


@pytest.mark.timeout(400)
def test_a_night_that_is_killed_goes_on_and_says_what_became_of_every_task(project: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = tmp_path / "first.log"
    with log.open("wb") as said:
        first = subprocess.Popen(command(project, data), stdout=said, stderr=said, env=environment())
    try:
        deadline = time.monotonic() + 150
        while not list((data / "nights").glob("*/probes-*/probe-000.npz")) and time.monotonic() < deadline:
            assert first.poll() is None, log.read_text()
            time.sleep(0.05)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    (night,) = journal.nights(data / "nights")
    assert not night.ended
    kept = list(night.folder.glob("probes-*/probe-*.npz"))
    assert kept  # what was finished is on the disk

    hook = tmp_path / "feed.prom"
    done = subprocess.run(
        command(project, data, "--metrics", str(hook), "--csv", str(tmp_path / "feed.csv")),
        capture_output=True, text=True, env=environment(), timeout=300,
    )  # fmt: skip
    assert "going on with night" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["night_id"] == night.id
    assert done.returncode == 1  # one host is away
    assert summary["counts"] | {"measured": 0, "new": 0} == {
        "measured": 0, "new": 0, "changed": 0, "failed": 1, "skipped": 1
    }  # fmt: skip
    assert [one["change"] for one in summary["measured"]] == ["new"]
    assert "127.0.0.1:9" in summary["failed"][0]["task"]
    assert "outside its window" in summary["skipped"][0]["message"]
    (again,) = journal.nights(data / "nights")
    assert again.ended
    assert list(night.folder.glob("probes-*")) == []  # a finished task's probes are no longer needed
    record = RunStore(data).read(summary["measured"][0]["run_id"])
    assert any("taken over" in note for note in record.notes)
    assert "deployctl_certified_users{" in hook.read_text()
    assert summary["measured"][0]["run_id"] in (tmp_path / "feed.csv").read_text()
    status = subprocess.run(command(project, data, "status"), capture_output=True, text=True, env=environment())
    assert [task["state"] for task in json.loads(status.stdout)["tasks"]].count("done") == 1
