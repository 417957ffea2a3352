"""A plan that sells more than its hosts have, held against a real host and one that is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from deployctl.records.validation import parse_validation

PLANS = """
more-than-there-is:
  title: <b>More</b> than there is
  vcpus: 512
  ram_gb: 8192
  disk_gb: 1
  promises:
    "llama3.1:8b": {users: 5, tokens_per_s: 5, slo: chat}
"""


@pytest.mark.lab
def test_less_than_was_sold_fails_before_anything_is_measured(lab_host: Callable[..., Any], tmp_path: Path) -> None:
    host = lab_host("alpha")
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "plans.yml").write_text(PLANS)
    junit, page = tmp_path / "v.xml", tmp_path / "v.html"
    where = ["--json", "--project", str(tmp_path), "--data-dir", str(tmp_path / "data")]
    hosts = ["--host", f"{host.user}@{host.address}:{host.port}", "--host", "root@127.0.0.1:9"]
    way = ["--key", str(host.key_file), "--accept-new"]
    files = ["--junit", str(junit), "--certificate", str(page), "--language", "es"]
    done = subprocess.run(
        [sys.executable, "-m", "deployctl", *where, "validate", "--plan", "more-than-there-is", *hosts, *way, *files],
        capture_output=True,
        text=True,
        timeout=200,
        env={name: value for name, value in os.environ.items() if name != "DEPLOYCTL_STORE"},
    )
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    there, away = answer["hosts"]
    assert {claim["kind"]: claim["verdict"] for claim in there["claims"]} == {
        "cpus": "FAIL", "memory": "FAIL", "disk": "PASS"
    }  # fmt: skip
    assert away["verdict"] == "INCONCLUSIVE"
    assert "127.0.0.1" in away["problem"]
    assert answer["verdict"] == "FAIL"
    assert [(suite.get("failures"), suite.get("errors")) for suite in Xml.parse(junit).getroot()] == [
        ("2", "0"), ("0", "1")
    ]  # fmt: skip
    text = page.read_text("utf-8")
    assert "NO CUMPLE" in text
    assert "<b>More</b>" not in text
    (kept,) = (tmp_path / "data" / "validations").glob("*/validation.json")
    assert parse_validation(kept.read_text("utf-8")).verdict == "FAIL"
    # Nothing was installed or measured there, so there is no run.
    assert list((tmp_path / "data" / "runs").glob("*")) == []
