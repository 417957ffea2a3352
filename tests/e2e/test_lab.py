"""The main job against a systemd host that is reached as a sudo user, and every way in which the host can refuse."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nspawn.host import LabHost, new_client_key

from deployctl.records.schema import parse_record

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.lab]

MODEL = ("--model", "gemma3:270m", "--engine", "embedded")


@pytest.fixture(scope="module")
def machine(lab_host: Callable[..., LabHost]) -> LabHost:
    return lab_host("up", user="deploy", sudo="nopasswd")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def here(shell: Any, disk: Path) -> Iterator[Any]:
    """A user's shell whose data directory outlives one test: the host key is learnt once."""
    shell.data_dir = disk
    return shell


def aim(machine: LabHost) -> tuple[str, ...]:
    host = f"{machine.user}@{machine.address}:{machine.port}"
    return ("--plan", "sandbox", "--host", host, "--key", str(machine.key_file))


def test_an_unknown_host_key_is_shown_and_refused_where_nobody_can_answer(here: Any, machine: LabHost) -> None:
    answer = here.run("up", *aim(machine), *MODEL)
    assert answer.code == 3
    assert "SHA256:" in answer.err
    assert "--accept-new" in answer.err


@pytest.mark.timeout(400)
def test_up_certifies_users_on_a_systemd_host(here: Any, machine: LabHost) -> None:
    answer = here.run("up", *aim(machine), *MODEL, "--accept-new", "--budget", "90s", "--json")
    assert answer.code == 0, answer.err
    record = parse_record(answer.out)
    assert record.capacity.certified_users >= 1
    assert record.host is not None
    assert record.host.os == "debian 12"
    assert record.deployment.service_manager == "systemd"
    # What the server itself says that it runs, against what was asked for.
    assert record.deployment.found is not None
    assert record.deployment.found["slots"] == record.deployment.settings["slots"]
    assert machine.run("systemctl is-active ollama").stdout.strip() == "active"
    environment = machine.run("systemctl show ollama --property Environment").stdout
    assert f"OLLAMA_NUM_PARALLEL={record.deployment.settings['slots']}" in environment
    assert "OLLAMA_HOST=127.0.0.1" in environment


def test_up_again_changes_nothing_on_the_host(here: Any, machine: LabHost) -> None:
    looked_at = "stat -c '%n %Y %Z' /usr/local/bin/ollama /etc/systemd/system/ollama.service* /var/lib/deployctl/stamp"
    before = machine.run(looked_at).stdout
    answer = here.run("up", *aim(machine), *MODEL, "--budget", "10s")
    assert answer.code in (0, 6), answer.err  # ten seconds may be too short to certify anything
    assert "as the last run left it" in answer.err
    assert machine.run(looked_at).stdout == before != ""


def test_test_measures_what_is_served_and_installs_nothing(here: Any, machine: LabHost) -> None:
    before = machine.run("stat -c %Y /etc/systemd/system/ollama.service").stdout
    host = f"{machine.user}@{machine.address}:{machine.port}"
    words = ("--host", host, "--key", str(machine.key_file), "--model", "gemma3:270m", "--workload", "demo")
    answer = here.run("test", *words, "--slo", "demo", "--budget", "10s", "--json")
    assert answer.code in (0, 6), answer.err
    assert json.loads(answer.out)["deployment"]["engine"] == "external"
    assert machine.run("stat -c %Y /etc/systemd/system/ollama.service").stdout == before


def test_host_check_says_what_the_host_is_and_that_it_is_ready(here: Any, machine: LabHost) -> None:
    host = f"{machine.user}@{machine.address}:{machine.port}"
    answer = here.run("host", "check", host, "--key", str(machine.key_file), "--plan", "cpu-64gb")
    assert answer.code == 0, answer.err
    assert "debian 12" in answer.out
    assert "plan says 32 vCPUs" in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_a_model_that_nobody_has_is_named_with_the_nearest(here: Any, machine: LabHost) -> None:
    answer = here.run("up", *aim(machine), "--model", "nope:1b", "--engine", "embedded")
    assert answer.code == 5
    assert "nope:1b" in answer.err
    assert "nearest" in answer.err


def test_a_key_that_the_host_does_not_know_is_refused(here: Any, machine: LabHost, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = new_client_key(tmp_path / "other")
    host = f"{machine.user}@{machine.address}:{machine.port}"
    answer = here.run("up", "--plan", "sandbox", "--host", host, "--key", str(stranger), *MODEL)
    assert answer.code == 3
    assert "Traceback" not in answer.err


@pytest.mark.timeout(400)
def test_a_host_that_goes_away_in_mid_search_is_lost_and_not_slow(
    here: Any, machine: LabHost, tmp_path: Path, wait_for: Callable[..., None]
) -> None:
    err = tmp_path / "stderr"
    with err.open("w") as sink:
        child = subprocess.Popen(
            [*here.command, "--data-dir", str(here.data_dir), "up", *aim(machine), *MODEL, "--budget", "10m"],
            stdout=subprocess.DEVNULL,
            stderr=sink,
            cwd=here.cwd,
            env=here.env,
            start_new_session=True,
        )
    try:
        wait_for(lambda: "within the SLO" in err.read_text() or child.poll() is not None, "the first looks of a probe")
        machine.stop_sshd()
        assert child.wait(timeout=120) == 3, err.read_text()
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.wait()
        machine.start_sshd()
    assert "Traceback" not in err.read_text()


def test_a_changed_host_key_stops_everything_before_anything_is_sent(here: Any, machine: LabHost) -> None:
    known = (here.data_dir / "known_hosts").read_bytes()
    machine.regenerate_host_key()
    answer = here.run("up", *aim(machine), *MODEL, "--accept-new")
    assert answer.code == 3
    assert "ssh-keygen" in answer.err, "the exact remedy is named"
    assert (here.data_dir / "known_hosts").read_bytes() == known, "the old key is never overwritten"
    log = machine.run("journalctl -u ssh -o cat --no-pager -n 20").stdout
    assert "Accepted" not in log.splitlines()[-1]
