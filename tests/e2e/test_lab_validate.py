"""The gate before a sale, measured on two hosts of one plan: a promise that holds, one too high, one not decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from nspawn.fixtures import HostFactory

from deployctl.resources import shipped_root

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.timeout(1800),
    pytest.mark.matrix,
]

PROMISES = {
    "modest": "{users: 1, tokens_per_s: 0.5, seconds_for_200_tokens: 400, slo: patient}",
    "boastful": "{users: 40, tokens_per_s: 2000, seconds_for_200_tokens: 0.2, slo: demo}",
    "undecided": "{users: 3, slo: patient}",
}
PATIENT = "\npatient: {title: Nobody minds, ttft_s: 30.0, tpot_s: 3.0, attainment: 0.8}\n"


@pytest.fixture
def validate(shell: Any, lab_host: HostFactory) -> Callable[..., tuple[int, Any]]:
    """Validate a plan that both hosts embody; returns the exit code and the document."""
    hosts = [lab_host("validate-one", user="root"), lab_host("validate-two", user="root")]
    inventory = shell.cwd / "inventory"
    inventory.mkdir()
    sold = "vcpus: 2, ram_gb: 4, disk_gb: 10, slo: patient, workload: demo"
    plans = [f"{name}: {{{sold}, promises: {{'gemma3:270m': {promise}}}}}" for name, promise in PROMISES.items()]
    (inventory / "plans.yml").write_text("\n".join(plans) + "\n")
    shipped = (shipped_root() / "inventory" / "slos.yml").read_text("utf-8")
    (inventory / "slos.yml").write_text(shipped + PATIENT)
    shell.env.pop("DEPLOYCTL_STORE", None)

    def run(plan: str, *words: str) -> tuple[int, Any]:
        (inventory / "hosts.yml").write_text(
            "".join(f"{h.name}: {{address: {h.address}, key_file: {h.key_file}, plan: {plan}}}\n" for h in hosts)
        )
        command = ("validate", "--plan", plan, "--engine", "embedded", "--accept-new", "--json", *words)
        child = shell.start(*command)
        out, err = child.communicate(timeout=1500)
        print(err)
        return child.returncode, json.loads(out)

    return run


def verdicts(host: dict[str, Any]) -> dict[str, str]:
    return {claim["kind"]: claim["verdict"] for claim in host["claims"]}


HARDWARE = {"cpus": "PASS", "memory": "PASS", "disk": "PASS"}


def test_a_promise_that_holds_one_too_high_and_one_not_decided(validate: Any, shell: Any) -> None:
    code, document = validate("modest", "--budget", "3m", "--certificate", "modest.html", "--junit", "modest.xml")
    kept = HARDWARE | {"users": "PASS", "tokens_per_s": "PASS", "seconds_for_200_tokens": "PASS"}
    assert [verdicts(host) for host in document["hosts"]] == [kept, kept]
    assert (code, document["verdict"]) == (0, "PASS")
    page = (shell.cwd / "modest.html").read_text("utf-8")
    assert page.count("validate-one") >= 1 <= page.count("validate-two")
    # Each measured host left a run of its own, whole and sealed.
    runs = {claim["run_id"] for host in document["hosts"] for claim in host["claims"] if claim["run_id"]}
    assert len(runs) == 2
    assert shell.run("records", "verify").code == 0

    code, document = validate("boastful", "--budget", "8m")
    broken = {"users": "FAIL", "tokens_per_s": "FAIL", "seconds_for_200_tokens": "FAIL"}
    assert [verdicts(host) for host in document["hosts"]] == [HARDWARE | broken] * 2
    assert (code, document["verdict"]) == (1, "FAIL")

    code, document = validate("undecided", "--budget", "4s")
    assert [verdicts(host) for host in document["hosts"]] == [HARDWARE | {"users": "INCONCLUSIVE"}] * 2
    assert (code, document["verdict"]) == (2, "INCONCLUSIVE")
