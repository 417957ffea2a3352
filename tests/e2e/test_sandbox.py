"""The main job on the sandbox: real SSH, real Ansible, a real engine, real Locust."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployctl.records.schema import parse_record

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

SANDBOX = ("--plan", "sandbox", "--engine", "embedded", "--model", "gemma3:270m")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data directory for all tests here: the sandbox in it is provisioned once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def here(shell: Any, disk: Path) -> Iterator[Any]:
    shell.data_dir = disk
    return shell


class Running:
    """A started command whose stderr is read as it comes."""

    def __init__(self, child: "subprocess.Popen[str]", err: Path) -> None:
        self.child = child
        self.err = err

    def said(self) -> str:
        return self.err.read_text()

    def wait(self) -> int:
        return self.child.wait(timeout=60)


@pytest.fixture
def searching(here: Any, tmp_path: Path, wait_for: Callable[..., None]) -> Iterator[Running]:
    """`up`, in the middle of its search."""
    err = tmp_path / "stderr"
    with err.open("w") as sink:
        child = subprocess.Popen(
            [*here.command, "--data-dir", str(here.data_dir), "up", *SANDBOX, "--budget", "10m"],
            stdout=subprocess.DEVNULL,
            stderr=sink,
            cwd=here.cwd,
            env=here.env,
            text=True,
            start_new_session=True,
        )
    running = Running(child, err)
    wait_for(lambda: "within the SLO" in running.said() or child.poll() is not None, "the first looks of a probe")
    assert child.poll() is None, running.said()
    yield running
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def newest_run(disk: Path) -> Path:
    return max((disk / "runs").iterdir())


def processes(here: Any, word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            ours = entry.name.isdigit() and here.mark.encode() in (entry / "environ").read_bytes().split(b"\0")
            if ours and word in (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_up_certifies_users_and_keeps_record_samples_and_report(here: Any) -> None:
    answer = here.run("up", *SANDBOX, "--budget", "2m", "--json")
    assert answer.code == 0, answer.err
    record = parse_record(answer.out)
    folder = here.data_dir / "runs" / record.run_id
    assert parse_record((folder / "record.json").read_text()) == record
    assert record.capacity.certified_users >= 1
    assert record.model.digest
    assert record.deployment.engine == "embedded"
    assert record.sizing is not None
    assert record.deployment.settings["slots"] == record.sizing.slots
    assert any("llama.cpp" in note for note in record.notes), "the report says that this engine is not Ollama"
    assert "gemma3:270m" in (folder / "report.html").read_text()
    assert record.samples
    assert all((folder / kept.file).stat().st_size > 0 for kept in record.samples)
    passed = [probe for probe in record.probes if probe.verdict == "pass"]
    assert max(probe.users for probe in passed) == record.capacity.certified_users


def test_a_second_provisioning_changes_nothing(here: Any) -> None:
    first = here.run("provision", *SANDBOX, "--json")
    assert first.code == 0, first.err
    second = here.run("provision", *SANDBOX, "--json")
    assert second.code == 0, second.err
    # The sandbox was switched off in between, as a machine would be: starting the engine again is all there is to do.
    assert second.document["changes"] in ([], ["Run Ollama with these settings"])


def test_a_dry_run_changes_nothing(here: Any) -> None:
    answer = here.run("up", *SANDBOX, "--dry-run", "--json")
    assert answer.code == 0, answer.err
    assert answer.document["dry_run"] is True


def test_runs_and_reports_are_there_afterwards(here: Any) -> None:
    runs = here.run("runs", "--json").document
    assert [run["state"] for run in runs].count("finished") == 1
    assert here.run("report", "last", "--format", "md").out.startswith("# ")


def test_ctrl_c_in_mid_search_keeps_the_samples_and_leaves_no_process(here: Any, searching: Running) -> None:
    searching.child.send_signal(signal.SIGINT)
    assert searching.wait() == 7, searching.said()
    assert "cancelled" in searching.said()
    assert "Traceback" not in searching.said()
    kept = [path for path in newest_run(here.data_dir).iterdir() if path.name.startswith("samples")]
    assert sum(path.stat().st_size for path in kept) > 0


def test_a_terminated_run_ends_like_a_cancelled_one(here: Any, searching: Running) -> None:
    searching.child.terminate()
    assert searching.wait() == 7, searching.said()


def test_an_ssh_server_that_dies_in_mid_run_is_a_lost_host_and_not_a_slow_one(here: Any, searching: Running) -> None:
    guardian, server = sorted(processes(here, "deployctl.sandbox.guardian"))  # the server is the guardian's child
    assert guardian != server
    os.kill(server, signal.SIGKILL)
    assert searching.wait() == 3, searching.said()
    assert "Traceback" not in searching.said()
    assert not (newest_run(here.data_dir) / "record.json").exists(), "no capacity is recorded of a host that was lost"


def test_nothing_outlives_a_killed_run(here: Any, searching: Running) -> None:
    os.kill(searching.child.pid, signal.SIGKILL)
    searching.child.wait()
    deadline = time.monotonic() + 15
    while here.leftovers() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert here.leftovers() == []


def test_down_takes_the_engine_away_and_purge_the_models(here: Any) -> None:
    answer = here.run("down", "--plan", "sandbox", "--purge", "--json")
    assert answer.code == 0, answer.err
    assert answer.document["changed"] > 0
    left = [
        path for path in (here.data_dir / "sandbox" / "home").rglob("*") if path.is_file() and "ollama" in str(path)
    ]
    assert left == []
