"""Kept runs correct the predictions for the same class of host."""

from pathlib import Path
from typing import Any

import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.load import load_catalog
from deployctl.jobs.calibrate import calibration_for
from deployctl.records.schema import Record, parse_record
from deployctl.resources import Project
from deployctl.sizing.advise import advise


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(Project(Path("/nonexistent")))


def record(catalog: Catalog, root: Path, *, speed: float, plan: str = "cpu-32gb", engine: str = "ollama") -> Record:
    """A record of the suite's own data, as if it had been measured of Llama 3.1 8B on ``plan``."""
    kept = parse_record((root / "tests" / "records" / "data" / "v1" / "certified.json").read_bytes())
    sold = catalog.plan(plan)
    changes: dict[str, Any] = {
        "plan": kept.plan.model_copy(update={"id": plan, "vcpus": sold.vcpus, "gpus": ()}) if kept.plan else None,
        "model": kept.model.model_copy(update={"name": "llama3.1:8b", "variant": "q4_K_M", "bytes": 4_920_000_000}),
        "deployment": kept.deployment.model_copy(update={"engine": engine}),
        "baseline": kept.baseline.model_copy(update={"decode_tokens_per_s": speed}) if kept.baseline else None,
    }
    return kept.model_copy(update=changes)


def test_runs_on_the_same_plan_scale_the_speeds_and_are_named(catalog: Catalog, root: Path) -> None:
    plan = catalog.plan("cpu-32gb")
    args = (plan, catalog.model("llama3.1:8b"), catalog.workload("chat"), catalog.slo("chat"))
    plain = advise(*args, variant="q4_K_M")
    assert plain.predicted is not None
    slow = [record(catalog, root, speed=plain.predicted.decode_tok_s / 2) for _ in range(3)]
    calibration = calibration_for(plan, catalog, slow)
    assert calibration is not None
    # Three runs at half the predicted speed and one imaginary run at the prediction: 2 ** -(3 / 4), less what the KV
    # cache of the record's own workload makes of it.
    assert calibration.factor == pytest.approx(0.5**0.75, rel=0.05)
    corrected = advise(*args, variant="q4_K_M", calibration=calibration)
    assert corrected.predicted is not None
    assert corrected.predicted.decode_tok_s == pytest.approx(plain.predicted.decode_tok_s * calibration.factor)
    assert corrected.predicted.users < plain.predicted.users
    assert any(reason.startswith("calibrated from 3 runs measured on cpu-32gb") for reason in corrected.reasons)


def test_other_plans_and_the_embedded_engine_beside_a_genuine_one_do_not_count(catalog: Catalog, root: Path) -> None:
    plan = catalog.plan("cpu-32gb")
    assert calibration_for(plan, catalog, []) is None
    assert calibration_for(plan, catalog, [record(catalog, root, speed=5, plan="cpu-64gb")]) is None
    embedded = record(catalog, root, speed=1, engine="embedded")
    alone = calibration_for(plan, catalog, [embedded])
    assert alone is not None
    assert "embedded" in alone.what
    beside = calibration_for(plan, catalog, [embedded, record(catalog, root, speed=10)])
    assert beside is not None
    assert (beside.records, beside.what) == (1, "cpu-32gb")
