from __future__ import annotations

import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deployctl.errors import RecordError
from deployctl.records.schema import Record
from deployctl.records.store import RECORD, RunStore

Example = Callable[[str], Record]


def put(store: RunStore, record: Record) -> Path:
    """Write a record of a given id, as if its run had been made by this store."""
    (store.root / record.run_id).mkdir(parents=True)
    return store.write(record)


def make_ids(folder: Path, count: int) -> list[str]:
    moment = datetime(2026, 11, 30, 22, 17, tzinfo=UTC)  # all in one second, to provoke collisions
    store = RunStore(folder, now=lambda: moment)
    return [store.new_run().id for _ in range(count)]


def test_a_run_id_is_the_utc_second_and_four_hex_digits(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 30, 16, 17, 0, 999_999, tzinfo=UTC)
    run = RunStore(tmp_path, now=lambda: moment).new_run()
    assert re.fullmatch(r"20261130T161700Z-[0-9a-f]{4}", run.id)
    assert run.dir == tmp_path / "runs" / run.id


def test_a_run_is_private_and_its_record_readable_whatever_the_umask(tmp_path: Path, example: Example) -> None:
    old = os.umask(0o077)
    try:
        store = RunStore(tmp_path)
        run = store.new_run()
        path = store.write(example("certified").model_copy(update={"run_id": run.id}))
    finally:
        os.umask(old)
    assert stat.S_IMODE(run.dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_ids_sort_as_the_runs_began(tmp_path: Path) -> None:
    start = datetime(2026, 12, 31, 23, 59, 58, tzinfo=UTC)
    ids = [RunStore(tmp_path, now=lambda n=n: start + timedelta(seconds=n)).new_run().id for n in range(4)]  # type: ignore[misc]
    assert ids == sorted(ids)
    assert [entry.id for entry in RunStore(tmp_path).list()] == ids[::-1]


def test_processes_that_start_in_the_same_second_never_share_a_run(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        ids = [run_id for part in pool.starmap(make_ids, [(tmp_path, 150)] * 3) for run_id in part]
    assert len(ids) == 450
    assert len(set(ids)) == 450


def test_what_was_written_is_read_back_by_id_by_prefix_and_as_last(tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    older, newer = example("certified"), example("invalid")
    for record in (newer, older):
        put(store, record)
    assert store.read(older.run_id) == older
    assert store.read("20261112") == older
    assert store.read("last") == newer


def test_an_ambiguous_prefix_is_refused_with_two_of_the_runs(tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    for name in ("certified", "invalid"):
        put(store, example(name))
    with pytest.raises(RecordError, match=r"fits 2 runs, among them 20261116T030000Z-beef and 20261112T091503Z-4f3a"):
        store.read("2026")


@pytest.mark.parametrize(
    "reference",
    ["", "..", "../runs", "/etc", "a/b", "20261112T091503Z-4f3a/../x", "x\0y", "LAST", "2026*", "20261112\n"],
)
def test_a_reference_that_is_no_id_is_refused(tmp_path: Path, example: Example, reference: str) -> None:
    store = RunStore(tmp_path)
    put(store, example("certified"))
    with pytest.raises(RecordError, match="not a run id"):
        store.read(reference)


def test_a_link_out_of_the_store_is_not_followed(tmp_path: Path, example: Example) -> None:
    elsewhere = RunStore(tmp_path / "elsewhere")
    record = example("certified")
    put(elsewhere, record)
    store = RunStore(tmp_path / "here")
    store.root.mkdir(parents=True)
    (store.root / record.run_id).symlink_to(elsewhere.root / record.run_id)
    assert store.list() == ()
    with pytest.raises(RecordError, match="there is no run"):
        store.read(record.run_id)
    with pytest.raises(RecordError, match="there is no run"):
        store.write(record)


def test_a_record_never_changes_once_it_is_written(tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    record = example("certified")
    path = put(store, record)
    before = path.read_bytes()
    assert store.write(record) == path
    with pytest.raises(RecordError, match="already has another record"):
        store.write(record.model_copy(update={"notes": ("changed",)}))
    assert path.read_bytes() == before


def test_a_store_that_is_not_there_is_empty_and_stays_not_there(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "none")
    assert store.list() == ()
    with pytest.raises(RecordError, match="no finished run"):
        store.read("last")
    assert not (tmp_path / "none").exists()


def test_broken_unfinished_and_foreign_things_are_listed_or_left_out_but_never_raise(
    tmp_path: Path, example: Example
) -> None:
    store = RunStore(tmp_path)
    put(store, example("certified"))
    (store.root / "20261201T000000Z-aaaa").mkdir()
    broken = store.root / "20261202T000000Z-bbbb"
    broken.mkdir()
    (broken / RECORD).write_text("{ half a rec")
    swapped = store.root / "20261203T000000Z-cccc"
    swapped.mkdir()
    (swapped / RECORD).write_text(example("invalid").to_json())
    (store.root / "not a run").mkdir()
    (store.root / "20261204T000000Z-dddd").write_text("a file")
    assert [(entry.id[-4:], entry.state) for entry in store.list()] == [
        ("cccc", "broken"),
        ("bbbb", "broken"),
        ("aaaa", "unfinished"),
        ("4f3a", "finished"),
    ]
    assert "another run, 20261116T030000Z-beef" in store.list()[0].problem
    assert "not JSON" in store.list()[1].problem
    assert [entry.id for entry in store.unfinished] == ["20261201T000000Z-aaaa"]
    assert [entry.id[-4:] for entry in store.list(limit=2)] == ["cccc", "bbbb"]
    with pytest.raises(RecordError, match="has no record"):
        store.read("20261201")


def test_last_skips_a_run_that_has_no_record_yet(tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    put(store, example("certified"))
    store.new_run()
    assert store.read("last").run_id == example("certified").run_id


def test_a_run_is_running_while_its_process_lives_and_unfinished_once_it_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from deployctl.records.store import RunStore\n"
        f"print(RunStore(Path({str(tmp_path)!r})).new_run().id, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        run_id = child.stdout.readline().strip()
        store = RunStore(tmp_path)
        assert [(entry.id, entry.state) for entry in store.list()] == [(run_id, "running")]
        assert store.unfinished == ()
        child.send_signal(signal.SIGKILL)
    assert [(entry.id, entry.state) for entry in store.list()] == [(run_id, "unfinished")]
    assert [entry.id for entry in store.unfinished] == [run_id]


def test_a_full_disk_leaves_neither_half_a_record_nor_a_temporary_file(tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    run = store.new_run()
    record = example("certified").model_copy(update={"run_id": run.id})
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from deployctl.records.store import RunStore, read_record\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); record = read_record(Path(sys.argv[2]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "RunStore(Path(sys.argv[1])).write(record)"
    )
    source = tmp_path / "source.json"
    source.write_text(record.to_json())
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(source)], capture_output=True, text=True)
    assert "RecordError: cannot write" in done.stderr
    assert [path.name for path in run.dir.iterdir()] == ["run.lock"]


def test_a_report_is_attached_beside_the_record_and_may_be_replaced(tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    record = example("certified")
    put(store, record)
    store.attach(record.run_id, "report.html", "one")
    path = store.attach(record.run_id, "report.html", "two")
    assert path.read_text() == "two"
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["record.json", "report.html"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "record.json", "run.lock", "a\0b"])
def test_a_file_name_that_leaves_the_run_or_hits_the_record_is_refused(
    tmp_path: Path, example: Example, name: str
) -> None:
    store = RunStore(tmp_path)
    put(store, example("certified"))
    with pytest.raises(RecordError, match="not a file name"):
        store.attach(example("certified").run_id, name, b"x")


def test_a_store_that_cannot_be_created_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot create a run"):
        RunStore(tmp_path / "file").new_run()


def test_errors_name_the_command_that_lists_the_runs(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        RunStore(tmp_path).read("20260101")
    assert caught.value.hint == "deployctl runs"


def test_the_store_holds_no_descriptor_after_a_run_is_written(tmp_path: Path, example: Any) -> None:
    store = RunStore(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        run = store.new_run()
        store.write(example("certified").model_copy(update={"run_id": run.id}))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
