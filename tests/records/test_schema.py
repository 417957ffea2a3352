from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from deployctl.errors import RecordError, UsageError
from deployctl.records import migrations
from deployctl.records.parts import Capacity, Percentiles, Probe, Slo
from deployctl.records.schema import Record, parse_record, schema_json
from deployctl.records.values import jsonable

# The names that other work relies on, written down here from the contract and not from the code.
CONTRACT: dict[str, set[str]] = {
    "": {
        "schema_version", "run_id", "started_at", "ended_at", "deployctl_version", "plan", "model", "host",
        "deployment", "sizing", "workload", "slo", "baseline", "probes", "capacity", "timings",
    },
    "model": {"name", "variant", "digest", "bytes"},
    "host": {"name", "address", "os", "cpus", "ram_bytes", "gpus"},
    "deployment": {"engine", "ollama_version", "settings"},
    "sizing": {"bytes", "slots", "context"},
    "slo": {"ttft_s", "tpot_s", "e2e_s", "attainment"},
    "probes": {
        "users", "verdict", "requests", "effective_n", "attainment", "attainment_low", "attainment_high", "ttft_s",
        "tpot_s", "e2e_s", "tokens_per_s", "invalid_reasons",
    },
    "capacity": {"status", "certified_users", "at_most_users", "confidence", "limited_by"},
}  # fmt: skip


def document(data_dir: Path, name: str = "certified") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((data_dir / f"{name}.json").read_text("utf-8"))
    return loaded


def test_the_written_json_has_every_key_of_the_contract(example: Any) -> None:
    written = json.loads(example("certified").to_json())
    for block, keys in CONTRACT.items():
        part = written if not block else written[block]
        part = part[0] if isinstance(part, list) else part
        assert keys <= set(part), block
    assert set(written["probes"][0]["ttft_s"]) == {"p50", "p95", "p99"}


def test_a_record_survives_being_written_and_read(any_example: Record) -> None:
    assert parse_record(any_example.to_json()) == any_example


def test_a_minimal_record_still_writes_every_key_of_the_contract(example: Any) -> None:
    assert CONTRACT[""] <= set(json.loads(example("minimal").to_json()))


def test_the_json_holds_neither_nan_nor_infinity(any_example: Record) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(any_example.to_json(), parse_constant=refuse)


def test_an_infinite_latency_becomes_null() -> None:
    assert Percentiles(p50=1.0, p95=math.inf, p99=math.inf).model_dump() == {"p50": 1.0, "p95": None, "p99": None}


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -0.1])
def test_an_undefined_or_negative_latency_is_refused(bad: float) -> None:
    with pytest.raises(ValidationError):
        Percentiles(p50=bad, p95=1.0, p99=1.0)


def test_an_interval_from_a_normal_approximation_is_cut_to_what_a_share_can_be() -> None:
    probe = Probe(users=1, verdict="pass", requests=3, attainment=1.0, attainment_low=-0.02, attainment_high=1.04)
    assert (probe.attainment_low, probe.attainment_high) == (0.0, 1.0)


def test_a_probe_in_which_nothing_was_counted_has_null_where_its_figures_would_be() -> None:
    nothing = {"p50": math.nan, "p95": math.nan, "p99": math.nan}
    probe = Probe.model_validate(
        {"users": 2, "verdict": "inconclusive", "requests": 0, "attainment": math.nan, "ttft_s": nothing, "tpot_s": {}}
    )
    assert (probe.attainment, probe.ttft_s, probe.tpot_s) == (None, None, None)


def test_an_attainment_above_one_is_refused() -> None:
    with pytest.raises(ValidationError):
        Probe(users=1, verdict="pass", requests=3, attainment=1.01)
    with pytest.raises(ValidationError):
        Slo(attainment=95)


@pytest.mark.parametrize(
    ("status", "certified", "at_most"),
    [("certified", 0, None), ("at_least", 0, None), ("not_met", 1, None), ("certified", 12, 11)],
)
def test_a_capacity_that_contradicts_itself_is_refused(status: Any, certified: int, at_most: int | None) -> None:
    with pytest.raises(ValidationError):
        Capacity(status=status, certified_users=certified, at_most_users=at_most)


def test_a_record_cannot_be_changed(example: Any) -> None:
    with pytest.raises(ValidationError):
        example("certified").run_id = "20261112T091503Z-0000"


def test_an_unknown_key_is_refused_and_named(data_dir: Path) -> None:
    changed = document(data_dir)
    changed["capacity"]["certified_user"] = 99
    with pytest.raises(RecordError, match=r"capacity\.certified_user"):
        parse_record(json.dumps(changed), source="x.json")


@pytest.mark.parametrize("missing", sorted(CONTRACT[""] - {"schema_version"}))
def test_a_missing_key_of_the_contract_is_refused_and_named(data_dir: Path, missing: str) -> None:
    changed = document(data_dir)
    del changed[missing]
    with pytest.raises(RecordError, match=missing):
        parse_record(json.dumps(changed))


def test_a_number_written_as_text_is_refused(data_dir: Path) -> None:
    changed = document(data_dir)
    changed["capacity"]["certified_users"] = "11"
    with pytest.raises(RecordError, match="certified_users"):
        parse_record(json.dumps(changed))


def test_a_time_without_a_zone_is_refused_and_another_zone_becomes_utc(data_dir: Path) -> None:
    changed = document(data_dir)
    changed["started_at"] = "2026-11-12T03:15:03-06:00"
    assert json.loads(parse_record(json.dumps(changed)).to_json())["started_at"] == "2026-11-12T09:15:03Z"
    changed["started_at"] = "2026-11-12T09:15:03"
    with pytest.raises(RecordError, match="started_at"):
        parse_record(json.dumps(changed))


def test_a_newer_schema_is_refused_with_the_way_out(data_dir: Path) -> None:
    changed = document(data_dir) | {"schema_version": 3, "a_key_of_the_future": 1}
    with pytest.raises(RecordError, match="schema version 3; this deployctl reads up to 2") as caught:
        parse_record(json.dumps(changed), source="r.json")
    assert "upgrade" in caught.value.hint
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize("version", [None, "1", True, 0, -1, 1.0])
def test_a_version_that_is_no_number_is_refused(data_dir: Path, version: object) -> None:
    with pytest.raises(RecordError, match="schema_version"):
        parse_record(json.dumps(document(data_dir) | {"schema_version": version}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema_version": NaN}', "[" * 100_000, b"\xff\xfe{"])
def test_what_is_not_a_record_is_refused_and_the_source_named(text: str | bytes) -> None:
    with pytest.raises(RecordError, match=r"x\.json"):
        parse_record(text, source="x.json")


def test_older_documents_climb_one_migration_after_the_other_and_stay_as_they_were() -> None:
    registry: dict[int, migrations.Migration] = {
        1: lambda document: {**document, "b": document["a"] + 1},
        2: lambda document: {**document, "c": document["b"] * 10},
    }
    old = {"schema_version": 1, "a": 4}
    new = migrations.upgrade(old, to_version=3, registry=registry)
    assert new == {"schema_version": 3, "a": 4, "b": 5, "c": 50}
    assert old == {"schema_version": 1, "a": 4}


def test_an_old_version_without_a_way_up_is_refused() -> None:
    with pytest.raises(RecordError, match="no migration leads from it to 2"):
        migrations.upgrade({"schema_version": 1}, to_version=2, registry={})


def test_free_blocks_take_numpy_numbers_and_make_undefined_ones_null() -> None:
    given = {"a": np.float64(1.5), "b": np.int64(3), "c": math.nan, "d": (1, math.inf), "e": {"f": np.bool_(True)}}
    assert jsonable(given) == {"a": 1.5, "b": 3, "c": None, "d": [1, None], "e": {"f": True}}


def test_free_blocks_refuse_objects_instead_of_printing_them() -> None:
    with pytest.raises(TypeError, match="object"):
        jsonable({"key": object()})


def test_an_undecodable_byte_of_a_host_can_still_be_written() -> None:
    assert jsonable(b"\xff".decode("utf-8", "surrogateescape")) == "?"


def test_the_published_schema_lists_the_contract_as_required() -> None:
    schema = json.loads(schema_json())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert CONTRACT[""] <= set(schema["properties"])
    assert schema["additionalProperties"] is False
