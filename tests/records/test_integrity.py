"""Edited, cut short, lost: each is found, and none is believed."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployctl.errors import RecordError
from deployctl.jobs import keeping
from deployctl.records import archive
from deployctl.records.digest import content_digest
from deployctl.records.integrity import contradictions, verify_run
from deployctl.records.parts import Samples
from deployctl.records.retention import Policy, choose
from deployctl.records.schema import Record, parse_record
from deployctl.records.store import Run, RunStore

Example = Callable[[str], Record]


@pytest.fixture
def run(tmp_path: Path, example: Example) -> Run:
    """A run with one file of raw requests, as a job leaves it."""
    store = RunStore(tmp_path)
    made = store.new_run()
    (made.dir / "samples-aa.parquet").write_bytes(b"raw requests")
    sha = hashlib.sha256(b"raw requests").hexdigest()
    samples = (Samples(file="samples-aa.parquet", format="parquet", rows=1, sha256=sha, bytes=12),)
    store.write(example("certified").model_copy(update={"run_id": made.id, "samples": samples}))
    return made


def kinds(run: Run, **options: Any) -> list[str]:
    return [finding.kind for finding in verify_run(run.id, run.dir, **options).findings]


def test_the_digest_is_the_sha256_of_the_sorted_compact_json() -> None:
    # By hand: printf '{"a":[1,2.5,"ñ"],"b":null}' | sha256sum
    expected = hashlib.sha256('{"a":[1,2.5,"ñ"],"b":null}'.encode()).hexdigest()
    assert content_digest({"b": None, "digest": "whatever", "a": [1, 2.5, "ñ"]}) == expected


def test_a_run_as_it_was_written_verifies(run: Run) -> None:
    assert kinds(run) == []


def test_layout_and_order_of_keys_do_not_break_the_seal(run: Run) -> None:
    path = run.dir / "record.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(document.items()))))
    assert kinds(run) == []


def test_every_kind_of_damage_is_found_by_its_name(run: Run) -> None:
    path, raw = run.dir / "record.json", run.dir / "samples-aa.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"certified_users": 11', b'"certified_users": 14'))
    assert kinds(run) == ["edited"]
    path.write_bytes(whole[: len(whole) // 2])
    assert kinds(run) == ["truncated"]
    document = json.loads(whole)
    del document["digest"]
    path.write_text(json.dumps(document))
    assert kinds(run) == ["edited"]
    path.write_bytes(b"[1, 2}")
    assert kinds(run) == ["unreadable"]
    path.unlink()
    assert kinds(run) == ["missing"]
    path.write_bytes(whole)
    raw.write_bytes(b"raw requestz")
    assert kinds(run) == ["samples changed"]
    raw.unlink()
    assert kinds(run) == ["samples missing"]


def test_an_edit_with_a_digest_made_anew_is_found_by_its_evidence_or_by_the_store(run: Run) -> None:
    path = run.dir / "record.json"
    document = json.loads(path.read_text())
    told = document["digest"]
    document["capacity"] |= {"certified_users": 40, "at_most_users": 41}
    document["digest"] = content_digest(document)
    path.write_text(json.dumps(document))
    assert kinds(run) == ["contradiction"]
    document["capacity"] |= {"certified_users": 11, "at_most_users": 13}
    document["notes"] = ["nothing to see"]
    document["digest"] = content_digest(document)
    path.write_text(json.dumps(document))
    assert kinds(run) == []
    assert kinds(run, stored_digest=told) == ["not as stored"]


def test_no_single_change_of_a_value_survives(run: Run) -> None:
    document = json.loads((run.dir / "record.json").read_text())
    paths = list(_leaves(document))

    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.sampled_from(paths), st.one_of(st.none(), st.booleans(), st.integers(), st.text()))
    def change(path: tuple[Any, ...], value: object) -> None:
        edited = json.loads(json.dumps(document))
        block = edited
        for key in path[:-1]:
            block = block[key]
        if block[path[-1]] == value and type(block[path[-1]]) is type(value):
            return
        block[path[-1]] = value
        with pytest.raises(RecordError):
            parse_record(json.dumps(edited))

    change()


def _leaves(block: Any, path: tuple[Any, ...] = ()) -> Any:
    items = block.items() if isinstance(block, dict) else enumerate(block) if isinstance(block, list) else ()
    for key, value in items:
        yield from _leaves(value, (*path, key)) if isinstance(value, dict | list) and value else [(*path, key)]


def test_the_examples_do_not_contradict_themselves(any_example: Record) -> None:
    assert list(contradictions(any_example)) == []


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ({"requests": 0}, "without a request"),
        ({"invalid_reasons": ["steal"]}, "has reasons not to"),
        ({"attainment": 0.5}, "outside its own interval"),
        ({"attainment": 0.2, "attainment_low": 0.1, "attainment_high": 0.3}, "its interval lies below"),
    ],
)
def test_evidence_that_does_not_carry_its_verdict_is_named(example: Example, probe: dict[str, Any], said: str) -> None:
    record = example("certified")
    passed = next(index for index, one in enumerate(record.probes) if one.verdict == "pass")
    changed = [one.model_dump() for one in record.probes]
    changed[passed] |= probe
    forged = Record.model_validate(record.model_dump(exclude={"digest"}) | {"probes": changed})
    assert any(said in sentence for sentence in contradictions(forged))


def test_kept_documents_of_version_1_are_read_and_called_unsealed(tmp_path: Path, data_dir: Path) -> None:
    for path in sorted(data_dir.glob("*.json")):
        old = json.loads(path.read_text("utf-8"))
        assert old["schema_version"] == 1
        record = parse_record(path.read_bytes())
        assert record.schema_version == 2
        assert [kept.file for kept in record.samples] == ([old["samples"]["file"]] if old.get("samples") else [])
        folder = tmp_path / record.run_id
        folder.mkdir()
        (folder / "record.json").write_bytes(path.read_bytes())
        assert "unsealed" in [finding.kind for finding in verify_run(record.run_id, folder).findings]


def test_an_export_is_taken_in_elsewhere_once_and_verifies_there(run: Run, tmp_path: Path) -> None:
    assert archive.export([run], tmp_path / "out.tar") == 1
    other = RunStore(tmp_path / "other")
    assert archive.take_in(tmp_path / "out.tar", other).new == (run.id,)
    assert archive.take_in(tmp_path / "out.tar", other).known == (run.id,)
    assert verify_run(run.id, other.root / run.id).findings == ()
    assert (other.root / run.id / "record.json").read_bytes() == (run.dir / "record.json").read_bytes()


def test_an_export_without_samples_says_so_where_it_is_taken_in(run: Run, tmp_path: Path) -> None:
    archive.export([run], tmp_path / "out.tar", samples=False)
    other = RunStore(tmp_path / "other")
    archive.take_in(tmp_path / "out.tar", other)
    checked = verify_run(run.id, other.root / run.id)
    assert checked.ok
    assert [finding.kind for finding in checked.findings] == ["samples pruned"]


def test_a_damaged_run_is_not_exported(run: Run, tmp_path: Path) -> None:
    (run.dir / "samples-aa.parquet").write_bytes(b"other")
    with pytest.raises(RecordError, match="is not exported"):
        archive.export([run], tmp_path / "out.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "20261112T091503Z-4f3a/../../evil", "x/record.json"])
def test_a_hostile_archive_writes_nothing_outside(run: Run, tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        info = tarfile.TarInfo(name)
        (tmp_path / "payload").write_bytes(b"evil")
        info.size = 4
        with (tmp_path / "payload").open("rb") as stream:
            tar.addfile(info, stream)
        link = tarfile.TarInfo(f"{run.id}/record.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    done = archive.take_in(tmp_path / "bad.tar", RunStore(tmp_path / "other"))
    assert done.new == ()
    assert len(done.refused) == 2
    assert not list(tmp_path.rglob("evil"))
    assert not (tmp_path / "other" / "runs").exists() or not list((tmp_path / "other" / "runs").iterdir())


def test_an_edited_record_is_not_taken_in(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "record.json"
    bad.write_bytes((run.dir / "record.json").read_bytes().replace(b'"certified_users": 11', b'"certified_users": 12'))
    with pytest.raises(RecordError, match="edited"):
        archive.take_in(bad, RunStore(tmp_path / "other"))


def test_retention_takes_raw_requests_first_and_never_the_newest_certified_run(
    tmp_path: Path, example: Example
) -> None:
    store = RunStore(tmp_path)
    now = datetime(2026, 12, 31, tzinfo=UTC)
    ids = []
    for days in (400, 200, 10):
        at = now - timedelta(days=days)
        made = RunStore(tmp_path, now=lambda at=at: at).new_run()  # type: ignore[misc]
        (made.dir / "s.parquet").write_bytes(b"x")
        samples = (Samples(file="s.parquet", format="parquet", sha256=hashlib.sha256(b"x").hexdigest()),)
        changes = {"run_id": made.id, "started_at": at, "ended_at": at, "samples": samples}
        store.write(example("certified").model_copy(update=changes))
        ids.append(made.id)
    chosen = choose(store.list(), Policy(samples_days=90, runs_days=365), now)
    assert [(one.run_id, one.what) for one in chosen] == [(ids[0], "run"), (ids[1], "samples")]
    assert choose(store.list(), Policy(samples_days=0, runs_days=0), now + timedelta(days=3650))[-1].run_id == ids[1]


def test_pruning_keeps_the_record_and_says_what_went(
    run: Run, tmp_path: Path, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEPLOYCTL_STORE", raising=False)
    newer = RunStore(tmp_path).new_run()  # the newest certified run is sacred, so that the older one is not
    later = datetime(2027, 1, 1, tzinfo=UTC)
    changes = {
        "run_id": newer.id[:8].replace(newer.id[:8], "20990101") + newer.id[8:],
        "started_at": later,
        "ended_at": later,
    }
    newer.dir.rename(newer.dir.with_name(changes["run_id"]))  # type: ignore[arg-type]
    RunStore(tmp_path).write(example("certified").model_copy(update=changes))
    assert [one.what for one in keeping.prune(tmp_path, Policy(samples_days=0), dry_run=True)] == ["samples"]
    assert (run.dir / "samples-aa.parquet").exists()
    keeping.prune(tmp_path, Policy(samples_days=0), dry_run=False)
    assert not (run.dir / "samples-aa.parquet").exists()
    found, _ = keeping.verify_all(tmp_path, (run.id,))
    assert [(one.ok, [finding.kind for finding in one.findings]) for one in found] == [(True, ["samples pruned"])]
