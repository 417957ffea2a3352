"""The index on real servers: SQLite and PostgreSQL."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from deployctl.errors import RecordError, StoreUnavailable, UsageError
from deployctl.jobs.reporting import keep
from deployctl.records.db import engine as opening
from deployctl.records.db import index as indexing
from deployctl.records.db import queries, tables
from deployctl.records.db.index import Index
from deployctl.records.schema import Record
from deployctl.records.store import RunStore
from deployctl.resources import Project

Example = Callable[[str], Record]


def renamed(record: Record, number: int, **changes: Any) -> Record:
    """The same record under another id, a day later per number."""
    run_id = f"202601{number // 24 + 1:02}T{number % 24:02}0000Z-abcd"
    moment = datetime(2026, 1, number // 24 + 1, number % 24, tzinfo=UTC)
    return record.model_copy(update={"run_id": run_id, "started_at": moment, "ended_at": moment, **changes})


def test_what_a_record_says_is_found_again(database: str, tmp_path: Path, any_example: Record) -> None:
    with Index.open(tmp_path) as index:
        assert index.add(any_example.to_json().encode())
        assert not index.add(any_example.to_json().encode())
        (row,) = queries.recent(index)
        assert (row.run_id, row.digest) == (any_example.run_id, any_example.digest)
        assert (row.certified_users, row.capacity_status) == (
            any_example.capacity.certified_users,
            any_example.capacity.status,
        )
        assert row.started_at == any_example.started_at
        assert row.series.model == indexing.text(any_example.model.name)
        assert [probe.users for probe in queries.probes_of(index, [row.run_id])[row.run_id]] == [
            probe.users for probe in any_example.probes
        ]
        assert queries.document(index, row.run_id) == any_example.to_json().encode()
        assert queries.history(index, row.series) == [row]
        assert queries.latest(index) == [row]


def test_names_that_are_code_elsewhere_stay_names(database: str, tmp_path: Path, example: Example) -> None:
    evil = "x'); DROP TABLE runs; --\0"
    record = renamed(example("certified"), 0, model=example("certified").model.model_copy(update={"name": evil}))
    assert record.host is not None
    record = record.model_copy(update={"host": record.host.model_copy(update={"name": '"; DELETE FROM runs; \\'})})
    with Index.open(tmp_path) as index:
        index.add(record.to_json().encode())
        (row,) = queries.recent(index, host='"; DELETE FROM runs; \\', model=evil)
        assert row.run_id == record.run_id
        assert queries.recent(index, host="' OR 1=1 --") == []


def test_an_edited_record_and_one_that_contradicts_itself_are_not_taken(
    database: str, tmp_path: Path, example: Example
) -> None:
    record = example("certified")
    edited = record.to_json().replace(f'"certified_users": {record.capacity.certified_users}', '"certified_users": 99')
    forged = record.model_copy(
        update={"capacity": record.capacity.model_copy(update={"certified_users": 99, "at_most_users": None})}
    )
    with Index.open(tmp_path) as index:
        with pytest.raises(RecordError, match="somebody edited it"):
            index.add(edited.encode())
        with pytest.raises(RecordError, match="99 users are certified, and no probe passed"):
            index.add(forged.to_json().encode())
        assert index.known() == set()


def test_another_record_of_a_known_run_is_refused(database: str, tmp_path: Path, example: Example) -> None:
    record = example("certified")
    with Index.open(tmp_path) as index:
        index.add(record.to_json().encode())
        with pytest.raises(RecordError, match="knows another record"):
            index.add(record.model_copy(update={"notes": ("else",)}).to_json().encode())


def add_many(folder: Path, source: Path, first: int, count: int) -> int:
    record = RunStoreRecord(source)
    added = 0
    for number in range(first, first + count):
        with Index.open(folder) as index:  # each opens and migrates anew: as many short processes would
            added += index.add(renamed(record, number).to_json().encode())
    return added


def RunStoreRecord(source: Path) -> Record:  # noqa: N802
    from deployctl.records.store import read_record

    return read_record(source)


def test_writers_at_the_same_time_lose_nothing_and_write_nothing_twice(
    database: str, tmp_path: Path, data_dir: Path
) -> None:
    source = data_dir / "certified.json"
    jobs = [(tmp_path, source, 0, 20), (tmp_path, source, 10, 20), (tmp_path, source, 20, 20)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        added = pool.starmap(add_many, jobs)
    assert sum(added) == 40
    with Index.open(tmp_path) as index:
        assert len(index.known()) == 40
        assert len(queries.recent(index, limit=1000)) == 40


def test_the_newest_of_each_series_and_what_is_stale(database: str, tmp_path: Path, example: Example) -> None:
    record = example("certified")
    assert record.host is not None
    other = record.model_copy(update={"host": record.host.model_copy(update={"name": "elsewhere"})})
    with Index.open(tmp_path) as index:
        for number, one in enumerate((record, other, record)):
            index.add(renamed(one, number).to_json().encode())
        newest = {row.series.host: row.run_id for row in queries.latest(index)}
        assert newest == {record.host.name: renamed(record, 2).run_id, "elsewhere": renamed(record, 1).run_id}
        times = queries.last_times(index)
        assert times["elsewhere", record.model.name, record.workload.name] == renamed(record, 1).started_at
        series = queries.recent(index, host=record.host.name)[0].series
        assert [row.run_id[9:11] for row in queries.history(index, series)] == ["00", "02"]
        assert [row.run_id[9:11] for row in queries.history(index, series, limit=1)] == ["02"]


def test_nights_and_validations_are_kept_and_replaced(database: str, tmp_path: Path) -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    with Index.open(tmp_path) as index:
        index.put_night("n1", at, None, {"state": "running"})
        index.put_night("n1", at, at, {"state": "done", "name": "<b>\0'"})
        assert queries.night_summaries(index) == [{"state": "done", "name": "<b>\0'"}]
        index.put_validation("v1", at, "cpu-8gb", "PASS", '{"a": 1}')
        assert queries.validations_of(index, "cpu-8gb") == [{"a": 1}]
        assert queries.validations_of(index, "' OR ''='") == []


def test_runs_that_retention_removes_take_their_probes_along(database: str, tmp_path: Path, example: Example) -> None:
    record = example("certified")
    with Index.open(tmp_path) as index:
        index.add(record.to_json().encode())
        assert index.forget((record.run_id, "20200101T000000Z-0000")) == 1
        assert index.known() == set()
        assert queries.probes_of(index, [record.run_id]) == {record.run_id: []}
        assert queries.document(index, record.run_id) is None


def test_the_migrations_lead_to_the_tables_of_the_code(database: str, tmp_path: Path) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(opening.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == tables.HEAD
    with Index.open(tmp_path) as index, opening.transaction(index.engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.metadata) == []


def test_a_store_of_a_newer_deployctl_is_refused(database: str, tmp_path: Path) -> None:
    import sqlalchemy as sa

    with Index.open(tmp_path) as index, opening.transaction(index.engine, write=True) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(RecordError, match="shape 9999"):
        Index.open(tmp_path)


# What happens when the database does not answer: the record is on disk, and comes in later.


def kept(store: RunStore, record: Record, number: int, tmp_path: Path) -> tuple[Record, str, list[str]]:
    said: list[str] = []
    run = store.new_run()
    mine = renamed(record, number).model_copy(update={"run_id": run.id})
    problem = keep(store, mine, Project(tmp_path), lambda event: said.append(getattr(event, "message", "")))
    return mine, problem, said


def test_a_locked_store_costs_no_record(tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(opening.VARIABLE, raising=False)
    monkeypatch.setattr(opening, "BUSY_S", 0.2)
    store = RunStore(tmp_path)
    first, _, _ = kept(store, example("certified"), 0, tmp_path)
    holder = sqlite3.connect(tmp_path / opening.FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    second, problem, said = kept(store, example("certified"), 1, tmp_path)
    assert problem == ""
    assert any("locked" in message for message in said)
    assert store.read(second.run_id) == second
    holder.execute("ROLLBACK")
    holder.close()
    third, _, said = kept(store, example("certified"), 2, tmp_path)
    assert said == []
    with Index.open(tmp_path) as index:
        assert index.known() == {first.run_id, second.run_id, third.run_id}


def test_a_full_disk_under_the_store_costs_no_record(tmp_path: Path, example: Example, data_dir: Path) -> None:
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from deployctl.records.db.index import Index\n"
        "from deployctl.errors import StoreUnavailable\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "index = Index.open(Path(sys.argv[1])); size = (Path(sys.argv[1]) / 'store.db').stat().st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))\n"
        "try: index.add(Path(sys.argv[2]).read_bytes())\n"
        "except StoreUnavailable as error: print(error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(data_dir / "certified.json")], capture_output=True, text=True
    )
    assert "cannot be used" in done.stdout, done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096
    with Index.open(tmp_path) as index:  # the database is whole, and takes the record now
        assert index.known() == set()
        assert index.add((data_dir / "certified.json").read_bytes())


def test_a_postgresql_that_goes_away_in_mid_write_costs_no_record(
    postgres: Any, tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(opening.VARIABLE, postgres.database("gone"))
    store = RunStore(tmp_path)
    first, _, _ = kept(store, example("certified"), 0, tmp_path)
    with Index.open(tmp_path) as index:
        original = indexing._insert

        def insert_and_lose_the_server(*arguments: Any) -> None:
            original(*arguments)
            postgres.stop("immediate")

        monkeypatch.setattr(indexing, "_insert", insert_and_lose_the_server)
        with pytest.raises(StoreUnavailable):
            index.add(renamed(example("certified"), 5).to_json().encode())
        monkeypatch.setattr(indexing, "_insert", original)
    try:
        second, problem, said = kept(store, example("certified"), 1, tmp_path)
        assert problem == ""
        assert any("cannot be used" in message for message in said)
    finally:
        postgres.start()
    with Index.open(tmp_path) as index:
        assert index.known() == {first.run_id}  # what was in mid-write is not there by half
        assert index.sync(store).imported == (second.run_id,)


def test_a_password_in_the_environment_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for url in (
        "postgresql://me:s3cret@db/x",
        "postgresql://db/x?password=s3cret",
        "mysql://db/x",
        "s3cret",
        "sqlite://",
    ):
        monkeypatch.setenv(opening.VARIABLE, url)
        with pytest.raises(UsageError) as caught:
            opening.store_url(tmp_path)
        assert "s3cret" not in caught.value.message + caught.value.hint


def test_the_database_file_is_the_owners_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(opening.VARIABLE, raising=False)
    with Index.open(tmp_path / "new"):
        assert (tmp_path / "new" / opening.FILE).stat().st_mode & 0o777 == 0o600


def test_a_sync_says_which_records_it_does_not_believe(database: str, tmp_path: Path, example: Example) -> None:
    store = RunStore(tmp_path)
    run = store.new_run()
    document = json.loads(example("certified").model_copy(update={"run_id": run.id}).to_json())
    document["capacity"]["certified_users"] = 50
    (run.dir / "record.json").write_text(json.dumps(document))
    with Index.open(tmp_path) as index:
        done = index.sync(store)
    assert done.imported == ()
    assert [(run_id, "edited" in why) for run_id, why in done.refused] == [(run.id, True)]
