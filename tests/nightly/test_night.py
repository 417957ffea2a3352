"""A night on disk: killed anywhere, it is read back; and the probes of a search that was killed are not lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deployctl.capacity.result import Budget
from deployctl.capacity.search import search
from deployctl.catalog.load import load_catalog
from deployctl.errors import CatalogError, HostBusy
from deployctl.nightly import journal
from deployctl.nightly.matrix import Task, by_staleness, read_matrix, tasks_of
from deployctl.nightly.probes import KeptProber, load
from deployctl.nightly.summary import Finding, summarise
from deployctl.resources import Project, shipped_root
from deployctl.simulator.bench import baseline_prior
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.scenario import load_scenario


def task(name: str, **more: object) -> Task:
    plain = {"group": "g", "host": name, "plan": None, "model": "m", "workload": "chat", "slo": "chat", "budget": "20m"}
    return Task(**{**plain, "retries": 1, "provision": True, **more})  # type: ignore[arg-type]


def test_the_example_matrix_spells_out_to_tasks(root: Path, tmp_path: Path) -> None:
    path = root / "inventory" / "nightly.example.yml"
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text("vps-1: {address: 203.0.113.7, plan: cpu-32gb}\n")
    found = tasks_of(read_matrix(path), load_catalog(Project(tmp_path)), path)
    assert [(one.host, one.model, one.workload) for one in found] == [
        ("vps-1", "llama3.1:8b", "chat"),
        ("vps-1", "llama3.1:8b", "rag"),
    ]
    assert found[0].seconds == pytest.approx(1.1 * 2400)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {hosts: [x], modls: [m]}", "did you mean 'models'"),
        ("a: {hosts: [x]}", "measures nothing"),
        ("a: {window: {from: '25:00'}}", "22:00"),
        ("{}", "names nothing"),
    ],
)
def test_a_matrix_that_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nightly.yml"
    path.write_text(text)
    with pytest.raises(CatalogError, match=said):
        tasks_of(read_matrix(path), load_catalog(Project(shipped_root())), path)


def test_what_was_never_measured_comes_first_then_the_oldest() -> None:
    tasks = [task("a"), task("b"), task("c"), task("d")]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    last = {("a", "m", "chat"): at, ("b", "m", "chat"): at - timedelta(days=3)}
    assert [one.host for one in by_staleness(tasks, last)] == ["c", "d", "b", "a"]


def test_a_journal_cut_at_any_byte_is_read_back_and_written_on(tmp_path: Path) -> None:
    night = journal.begin(tmp_path, [task("a"), task("b")])
    keys = list(night.progress)
    night.note(keys[0], "running")
    night.note(keys[0], "running", run_id="r1")
    night.note(keys[0], "done", run_id="r1")
    night.note(keys[1], "running")
    whole = (night.folder / journal.EVENTS).read_bytes()
    first_line = whole.index(b"\n")
    for cut in range(0, len(whole) + 1, 3):
        (night.folder / journal.EVENTS).write_bytes(whole[:cut])
        found = journal.read(night.folder)
        if cut < first_line:
            assert found is None
            continue
        assert found is not None
        assert not found.ended
        found.note(keys[1], "failed", message="x")  # goes on after a torn line
        again = journal.read(night.folder)
        assert again is not None
        assert again.progress[keys[1]].state == "failed"
        assert again.progress[keys[0]] == found.progress[keys[0]]
    assert found is not None
    assert (found.progress[keys[0]].state, found.progress[keys[0]].run_ids) == ("done", ("r1",))


def test_a_second_night_is_refused_and_told_who_runs_and_a_dead_one_blocks_nobody(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from deployctl.nightly.journal import only_night\n"
        f"with only_night(Path({str(tmp_path)!r})): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in\n"
        assert journal.running(tmp_path)
        with pytest.raises(HostBusy, match=f"process {child.pid} since"), journal.only_night(tmp_path):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        with journal.only_night(tmp_path):
            pass
    assert not journal.running(tmp_path)


def test_a_night_that_waits_begins_when_the_other_has_ended(tmp_path: Path) -> None:
    waited: list[int] = []
    holder = os.open(tmp_path / journal.LOCK, os.O_RDWR | os.O_CREAT)
    import fcntl

    fcntl.flock(holder, fcntl.LOCK_EX)

    def wait() -> None:
        waited.append(1)
        if len(waited) == 3:
            os.close(holder)

    with journal.only_night(tmp_path, wait=wait):
        assert len(waited) == 3


class Killed(BaseException):
    """Stands for kill -9 in the middle of a probe."""


class Mortal:
    """A prober that dies at the beginning of its n-th probe."""

    def __init__(self, prober, lives):  # type: ignore[no-untyped-def]
        self.prober, self.lives, self.held = prober, lives, 0

    def __call__(self, users, go_on, max_seconds):  # type: ignore[no-untyped-def]
        if self.held == self.lives:
            raise Killed
        self.held += 1
        return self.prober(users, go_on, max_seconds)


def test_a_search_that_is_killed_at_any_probe_loses_that_probe_only(root: Path, tmp_path: Path) -> None:
    scenario = load_scenario(root / "benchmarks" / "scenarios" / "reference.yml")
    conditions = {"model": "m"}
    undisturbed = VirtualProber(scenario, 2)
    whole = search(undisturbed, scenario.slo.to_slo(), baseline_prior(undisturbed), Budget(mode="standard"))
    for lives in range(min(3, len(whole.probes))):
        folder = tmp_path / f"killed-{lives}"
        host = VirtualProber(scenario, 2)
        prior = baseline_prior(host)
        mortal = Mortal(host, lives)
        with pytest.raises(Killed):
            search(KeptProber(mortal, folder, conditions), scenario.slo.to_slo(), prior, Budget(mode="standard"))
        survivor = Mortal(VirtualProber(scenario, 77), 10_000)
        kept = KeptProber(survivor, folder, conditions)
        resumed = search(kept, scenario.slo.to_slo(), prior, Budget(mode="standard"))
        assert kept.replayed == lives  # none of the finished ones is held again
        assert [p.users for p in resumed.probes[:lives]] == [p.users for p in whole.probes[:lives]]
        assert [p.verdict for p in resumed.probes[:lives]] == [p.verdict for p in whole.probes[:lives]]
        assert resumed.certified_users <= 11  # the capacity of the reference case


def test_probes_of_another_model_or_of_a_torn_file_are_not_shown_again(root: Path, tmp_path: Path) -> None:
    scenario = load_scenario(root / "benchmarks" / "scenarios" / "reference.yml")
    host = VirtualProber(scenario, 1)
    KeptProber(host, tmp_path / "k", {"digest": "a"})(3, lambda look: len(look.requests) < 20, 600.0)
    (path,) = (tmp_path / "k").glob("*.npz")
    assert load(path) is not None
    data = path.read_bytes()
    for cut in range(0, len(data), len(data) // 25):
        path.write_bytes(data[:cut])
        assert load(path) is None
    path.write_bytes(data)
    again = KeptProber(host, tmp_path / "k", {"digest": "b"})
    assert again._kept == []
    assert list((tmp_path / "k").glob("*.npz")) == []


def test_a_summary_counts_every_task_once() -> None:
    tasks = [task(name) for name in "abcde"]
    night = journal.Night("n", Path(), datetime(2026, 1, 1, tzinfo=UTC))
    states: tuple[journal.State, ...] = ("done", "failed", "away", "waiting", "skipped")
    night.progress = {t.key: journal.Progress(t, state, message=state) for t, state in zip(tasks, states, strict=True)}
    found = {tasks[0].key: Finding(tasks[0].key, "r", "certified", 3, 4, "slower", "speed -11.0 %")}
    summary = summarise(night, found, None)
    assert summary.to_dict()["counts"] == {"measured": 1, "new": 0, "changed": 1, "failed": 2, "skipped": 2}
    json.dumps(summary.to_dict(), allow_nan=False)
