"""Two nights over a real host and one that is away; the first is killed in the middle and goes on."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from nspawn.fixtures import HostFactory

from deployctl.records.schema import parse_record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.matrix,
]

NIGHTLY = """
fleet:
  plan: sandbox
  hosts: [here, gone]
  models: ["gemma3:270m"]
  workloads: [demo]
  slo: demo
  budget: 90s
  retries: 1
"""


def test_a_night_over_a_real_host_is_killed_goes_on_and_is_compared_with_the_next(
    shell: Any, lab_host: HostFactory, wait_for: Any
) -> None:
    host = lab_host("night", user="deploy", sudo="nopasswd")
    inventory = shell.cwd / "inventory"
    inventory.mkdir()
    (inventory / "nightly.yml").write_text(NIGHTLY)
    key = f"key_file: {host.key_file}"
    (inventory / "hosts.yml").write_text(
        f"here: {{address: {host.address}, user: deploy, {key}}}\ngone: {{address: 127.0.0.1, port: 9, {key}}}\n"
    )
    shell.env.pop("DEPLOYCTL_STORE", None)
    command = ("nightly", "--engine", "embedded", "--accept-new", "--json")

    first = shell.start(*command)
    nights = shell.data_dir / "nights"
    wait_for(lambda: list(nights.glob("*/probes-*/probe-000.npz")), "the first finished probe", 300)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    wait_for(lambda: shell.leftovers() == [], "its children to follow it")

    going_on = shell.start(*command)
    out, err = going_on.communicate(timeout=400)
    assert "going on with night" in err
    assert going_on.returncode == 1, err  # one host is away
    summary = json.loads(out)
    assert [one["change"] for one in summary["measured"]] == ["new"]
    assert ["gone" in one["task"] for one in summary["failed"]] == [True]
    (run,) = (shell.data_dir / "runs").glob(f"{summary['measured'][0]['run_id']}/record.json")
    record = parse_record(run.read_text("utf-8"))
    assert record.host is not None
    assert record.host.os == "debian 12"
    assert any("taken over" in note for note in record.notes)

    next_night = shell.start(*command)
    out, err = next_night.communicate(timeout=400)
    assert next_night.returncode == 1, err
    again = json.loads(out)
    assert again["night_id"] != summary["night_id"]
    assert [one["change"] for one in again["measured"]] == ["learning"]
    assert "as the last run left it" in err
    assert shell.run("records", "verify").code == 0
