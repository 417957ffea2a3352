"""What other parts of deployctl hand over fits the record as it is."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from deployctl.capacity.result import ProbeSummary
from deployctl.catalog.catalog import Catalog
from deployctl.catalog.load import load_catalog
from deployctl.records.parts import Plan, Probe, Slo, Workload
from deployctl.resources import Project
from deployctl.stats.quantiles import percentiles


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(Project(tmp_path_factory.mktemp("project")))


def test_every_plan_of_the_shipped_catalogue_fits(catalog: Catalog) -> None:
    assert len(catalog.plans) > 10
    for plan in catalog.plans.values():
        kept = Plan.model_validate(plan.model_dump(mode="json"))
        assert (kept.id, kept.promises.keys()) == (plan.id, plan.promises.keys())


def test_every_workload_of_the_shipped_catalogue_fits(catalog: Catalog) -> None:
    assert "chat" in catalog.workloads
    for workload in catalog.workloads.values():
        kept = workload.model_dump(mode="json", exclude={"log", "speed"})  # a replayed log is kept elsewhere
        assert Workload.model_validate(kept).name == workload.name


def test_every_slo_of_the_shipped_catalogue_fits(catalog: Catalog) -> None:
    assert "chat" in catalog.slos
    for slo in catalog.slos.values():
        assert Slo.model_validate({**asdict(slo.to_slo()), "name": slo.name}).attainment == slo.attainment


@pytest.mark.parametrize("latencies", [[], [0.5, np.inf, np.inf], [0.25]])
def test_a_probe_of_the_search_fits_even_with_no_requests_or_with_failed_ones(latencies: list[float]) -> None:
    block = percentiles(np.array(latencies))
    summary = ProbeSummary(
        users=3, verdict="inconclusive", requests=len(latencies), effective_n=0.0,
        attainment=float("nan") if not latencies else 1 / 3, attainment_low=0.0, attainment_high=1.0,
        ttft_s=block, tpot_s=block, e2e_s=block, tokens_per_s=0.0, invalid_reasons=(), seconds=4.0,
        broken_by={"failures": 2, "ttft": 0},
    )  # fmt: skip
    probe = Probe.model_validate(asdict(summary))
    assert (probe.ttft_s is None) == (not latencies)
    if latencies == [0.5, np.inf, np.inf]:
        assert probe.ttft_s is not None
        assert probe.ttft_s.model_dump() == {"p50": None, "p95": None, "p99": None}
