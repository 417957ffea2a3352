"""`host check --limit`: the real command, a real sshd, a host that is away, one whose plan sells more than is there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def fleet(sshd: Any, tmp_path: Path) -> Path:
    way = f"{{address: 127.0.0.1, port: {sshd.port}, user: {sshd.target().user}, key_file: {sshd.client_key}"
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text(
        f"here: {way}, become: false}}\n"
        f"sold: {way}, become: false, plan: huge}}\n"
        f"rooted: {way}, become: true}}\n"
        "away: {address: 127.0.0.1, port: 9}\n"
    )
    (tmp_path / "inventory" / "plans.yml").write_text("huge:\n  vcpus: 4096\n  ram_gb: 2\n  disk_gb: 10\n")
    return tmp_path


def check(fleet: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deployctl", "--data-dir", str(fleet / "data"), "host", "check", *words]
    environment = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(
        [*command, "--accept-new"], capture_output=True, text=True, cwd=fleet, env=environment, timeout=120, check=False
    )


def test_every_host_gets_its_line_and_the_worst_one_decides_the_exit_code(fleet: Path) -> None:
    answer = check(fleet, "--limit", "*", "--json")
    assert answer.returncode == 3, answer.stderr
    hosts = {host["host"]: host for host in json.loads(answer.stdout)["hosts"]}
    assert list(hosts) == ["here", "sold", "rooted", "away"], "in the order of the inventory"
    assert hosts["here"]["ready"] is True
    assert (hosts["away"]["exit_code"], hosts["away"]["found"]) == (3, None)
    assert "no SSH at" in hosts["away"]["error"]["message"]
    # Its own plan from the inventory, without --plan.
    assert any("plan says 4096 vCPUs" in sentence for sentence in hosts["sold"]["warnings"])
    assert hosts["sold"]["exit_code"] == 0
    systemd = Path("/run/systemd/system").is_dir()
    assert hosts["rooted"]["exit_code"] == (0 if systemd else 1)


def test_people_get_a_table_and_what_to_know_of_each_host(fleet: Path) -> None:
    answer = check(fleet, "--limit", "here,sold")
    assert answer.returncode == 0, answer.stderr
    assert "2 of 2 hosts are ready to be provisioned" in answer.stdout
    assert "! sold: plan says 4096 vCPUs" in answer.stdout


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--limit", "nobody"], "nobody"),
        (["here", "--limit", "here"], "exclude each other"),
        (["--limit", "here", "--plan", "hugo"], "huge"),
        ([], "no host was named"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_a_usage_error(words: list[str], names: str, fleet: Path) -> None:
    answer = check(fleet, *words)
    assert answer.returncode == 2
    assert names in answer.stderr
