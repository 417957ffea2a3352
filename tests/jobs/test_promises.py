"""Promises, judged: hardware by facts, speed by answers, users by the record, several hosts by the worst."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployctl.catalog.plans import Plan
from deployctl.errors import RecordError, UsageError
from deployctl.hosts.facts import Disk, GpuFacts, HostFacts, read
from deployctl.jobs.promises import hardware, speed
from deployctl.jobs.validate import _about_this_plan, users_claim
from deployctl.records.schema import Record, parse_record
from deployctl.records.validation import Claim, Validation, parse_validation, worst
from deployctl.report import certificate, junit
from deployctl.resources import Project, shipped_root

GIB = 1024**3
FACTS = read(
    "facts=1\ncpus=8\nram_kb=32500000\ndisk=400000000 300000000 /\nos_id=debian\nos_version=12\narch=x86_64\nend=1\n"
)
PLAN = Plan.model_validate({"id": "p", "vcpus": 8, "ram_gb": 32, "disk_gb": 400})


def verdicts(plan: Plan, facts: HostFacts) -> dict[str, str]:
    return {claim.kind: claim.verdict for claim in hardware(plan, facts)}


def test_what_was_sold_is_there() -> None:
    assert verdicts(PLAN, FACTS) == {"cpus": "PASS", "memory": "PASS", "disk": "PASS"}


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("cpus", replace(FACTS, cpus=7)),
        ("cpus", replace(FACTS, cpu_quota=6.0)),
        ("memory", replace(FACTS, ram_bytes=24 * GIB)),
        ("disk", replace(FACTS, disks=(Disk("/", 200 * 10**9, 1),))),
    ],
)
def test_less_than_was_sold_fails_there_only(kind: str, facts: HostFacts) -> None:
    found = verdicts(PLAN, facts)
    assert found.pop(kind) == "FAIL"
    assert set(found.values()) == {"PASS"}


@pytest.mark.parametrize(
    ("sold", "vram", "found", "verdict"),
    [
        # Names as nvidia-smi prints them; a 24 GB card reports 24564 MiB, an 80 GB one 81559 MiB.
        ("RTX 4090", 24, ("NVIDIA GeForce RTX 4090", 24564), "PASS"),
        ("A100-80GB", 80, ("NVIDIA A100-SXM4-80GB", 81920), "PASS"),
        ("A100-80GB", 80, ("NVIDIA A100-PCIE-40GB", 40960), "FAIL"),
        ("L4", 24, ("NVIDIA L40S", 46068), "FAIL"),
        ("H200-141GB", 141, ("NVIDIA H200", 143771), "PASS"),
        ("L4", 24, ("nvidia 0x27b8", 0), "INCONCLUSIVE"),
    ],
)
def test_the_card_that_was_sold_is_the_card_that_is_there(
    sold: str, vram: int, found: tuple[str, int], verdict: str
) -> None:
    plan = Plan.model_validate({**PLAN.model_dump(), "gpus": [{"model": sold, "vram_gb": vram}]})
    card = GpuFacts("nvidia", found[0], found[1] * 1024**2, "550", "8.9", "0000:01:00.0")
    assert verdicts(plan, replace(FACTS, gpus=(card,)))["gpus"] == verdict
    assert verdicts(plan, FACTS)["gpus"] == "FAIL"


def test_speed_is_judged_by_the_median_and_its_bounds() -> None:
    answers = [(0.5, 0.1)] * 8  # ten tokens per second; 200 tokens in 0.5 + 199 · 0.1 = 20.4 s
    fast, quick = speed("m", answers, tokens_per_s=8, seconds=25)
    assert (fast.verdict, fast.estimate) == ("PASS", pytest.approx(10))
    assert (quick.verdict, quick.estimate) == ("PASS", pytest.approx(20.4))
    slow, late = speed("m", answers, tokens_per_s=12, seconds=20)
    assert (slow.verdict, late.verdict) == ("FAIL", "FAIL")
    few = speed("m", answers[:4], tokens_per_s=8, seconds=25)
    assert {claim.verdict for claim in few} == {"INCONCLUSIVE"}
    mixed = speed("m", [(0.5, 0.1)] * 4 + [(0.5, 0.2)] * 4, tokens_per_s=8, seconds=None)
    assert [claim.verdict for claim in mixed] == ["INCONCLUSIVE"]


def test_answers_that_fail_are_no_reason_to_look_away() -> None:
    answers = [(math.inf, math.inf)] * 7 + [(0.5, 0.1)]
    (claim,) = speed("m", answers, tokens_per_s=1, seconds=None)
    assert claim.estimate == 0.0
    assert claim.verdict == "INCONCLUSIVE"  # one of eight answered well: its median is not decided yet
    (none,) = speed("m", [(math.inf, math.inf)] * 8, tokens_per_s=1, seconds=None)
    assert none.verdict == "FAIL"


@pytest.fixture
def held(root: Path) -> Callable[..., Record]:
    record = parse_record((root / "tests" / "records" / "data" / "v1" / "certified.json").read_bytes())

    def make(status: str, at_most: int | None) -> Record:
        users = 11 if status == "at_least" else 0
        block = {"status": status, "certified_users": users, "at_most_users": at_most, "confidence": 0.95}
        return Record.model_validate(record.model_dump(exclude={"digest"}) | {"capacity": block})

    return make


@pytest.mark.parametrize(
    ("status", "at_most", "verdict"),
    [
        ("at_least", None, "PASS"),
        ("inconclusive", 10, "FAIL"),
        ("inconclusive", None, "INCONCLUSIVE"),
        ("invalid", None, "INCONCLUSIVE"),
    ],
)
def test_users_are_judged_by_the_record(held: Any, status: str, at_most: int | None, verdict: str) -> None:
    assert users_claim("m", 11, held(status, at_most)).verdict == verdict


def test_a_host_with_more_than_was_sold_proves_nothing_by_passing(held: Any) -> None:
    passed = users_claim("m", 11, held("at_least", None))
    assert _about_this_plan(passed, ("host has 16 CPUs, plan sells 8",)).verdict == "INCONCLUSIVE"
    failed = users_claim("m", 11, held("inconclusive", 10))
    assert _about_this_plan(failed, ("host has 16 CPUs, plan sells 8",)).verdict == "FAIL"


def validation(name: str = "host-a", plan: str = "cpu-8gb", **more: Any) -> Validation:
    at = datetime(2026, 12, 1, 5, tzinfo=UTC)

    def claim(estimate: float, verdict: str) -> dict[str, Any]:
        return {
            "kind": "users",
            "model": name,
            "promised": 4,
            "unit": "users",
            "estimate": estimate,
            "low": estimate - 0.01,
            "high": 1.0,
            "target": 0.95,
            "verdict": verdict,
            "evidence": name,
            "run_id": "20261201T050000Z-abcd",
        }

    hosts = [
        {"host": name, "system": name, "engine": "ollama 0.32.15", "claims": [claim(0.99, "PASS")]},
        {"host": "host-b", "claims": [claim(0.96, "PASS")]},
    ]
    return Validation.model_validate(
        {
            "validation_id": "20261201T050000Z-abcd",
            "started_at": at,
            "ended_at": at,
            "valid_until": at + timedelta(days=30),
            "deployctl_version": "0.1.0",
            "confidence": 0.95,
            "plan": {"id": plan, "title": name},
            "conditions": [f"SLO: {name}", "workload: chat"],
            "hosts": hosts,
            **more,
        }
    )


def test_the_plan_is_as_good_as_its_worst_host() -> None:
    made = validation()
    (spread,) = made.spread()
    assert (spread.worst, spread.worst_host, spread.best, made.verdict) == (0.96, "host-b", 0.99, "PASS")
    away = [*[host.model_dump() for host in made.hosts], {"host": "host-c", "problem": "no route"}]
    assert validation(hosts=away).verdict == "INCONCLUSIVE"
    assert validation(hosts=away).spread()[0].verdict == "INCONCLUSIVE"
    assert worst(["PASS", "INCONCLUSIVE", "FAIL"]) == "FAIL"
    assert worst([]) == "INCONCLUSIVE"


def test_a_validation_is_sealed() -> None:
    text = validation().to_json()
    assert parse_validation(text) == validation()
    with pytest.raises(RecordError, match="digest"):
        parse_validation(text.replace('"INCONCLUSIVE"', '"PASS"').replace("0.96", "0.98"))


@pytest.mark.parametrize("language", ["en", "es"])
def test_the_certificate_says_verdict_worst_host_and_validity(language: str) -> None:
    page = certificate.render(validation(), Project(shipped_root()), language=language)
    assert f'<html lang="{language}">' in page
    assert {"en": "valid until <b>31 December 2026</b>", "es": "válido hasta <b>31 de diciembre de 2026</b>"}[
        language
    ] in page
    assert {"en": "96 % of requests meet the SLO", "es": "96 % de las peticiones cumple el SLO"}[language] in page
    assert ("expired" if language == "en" else "vencido") in certificate.render(
        validation(), Project(shipped_root()), language=language, now=datetime(2027, 2, 1, tzinfo=UTC)
    )
    assert set(certificate.WORDS["en"]) == set(certificate.WORDS["es"])


def test_a_language_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError):
        certificate.render(validation(), Project(shipped_root()), language="de")


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=80))
def test_no_name_breaks_the_page_or_the_xml(name: str) -> None:
    made = validation(name, plan=name)
    root = Xml.fromstring(junit.render(made))
    assert [suite.get("tests") for suite in root] == ["1", "1"]
    page = certificate.render(made, Project(shipped_root()))
    plain = certificate.render(validation("x", plan="x"), Project(shipped_root()))
    assert page.count("<") == plain.count("<")  # not one element more, whatever the names hold


def test_junit_counts_failures_and_errors() -> None:
    hosts = json.loads(validation().to_json())["hosts"]
    hosts[0]["claims"][0]["verdict"] = "FAIL"
    hosts[1]["claims"][0]["verdict"] = "INCONCLUSIVE"
    hosts[1]["problem"] = "gone"
    root = Xml.fromstring(junit.render(validation(hosts=hosts)))
    assert [(s.get("failures"), s.get("errors")) for s in root] == [("1", "0"), ("0", "2")]
    assert [child.tag for suite in root for case in suite for child in case] == ["failure", "error", "error"]


def test_a_browser_prints_one_page(tmp_path: Path) -> None:
    if certificate.find_browser() is None:
        pytest.skip("no Chromium is installed")
    target = tmp_path / "c.pdf"
    certificate.print_pdf(certificate.render(validation(), Project(shipped_root())), target)
    data = target.read_bytes()
    assert data.startswith(b"%PDF")
    assert data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type/Page/") <= 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.pdf"]
    if shutil.which("pdfinfo"):
        import subprocess

        said = subprocess.run(["pdfinfo", str(target)], capture_output=True, text=True).stdout
        assert "Pages:           1" in said


def test_a_claim_has_no_infinite_figure() -> None:
    assert Claim(kind="cpus", promised=1, verdict="PASS", estimate=math.inf).estimate is None
