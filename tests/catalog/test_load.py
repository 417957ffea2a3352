from pathlib import Path

import pytest

from deployctl.catalog.load import load_catalog
from deployctl.errors import CatalogError, ModelUnavailable, UsageError
from deployctl.resources import Project

PLANS = {
    "sandbox", "cpu-8gb", "cpu-16gb", "cpu-32gb", "cpu-64gb", "gpu-l4", "gpu-a10", "gpu-rtx4090", "gpu-a100-40",
    "gpu-a100-80", "gpu-h100", "gpu-h200",
}  # fmt: skip

ONE_PLAN = """\
small:
  vcpus: 2
  ram_gb: 4
  disk_gb: 40
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory").mkdir()
    return tmp_path


def put(project: Path, name: str, text: str) -> None:
    (project / "inventory" / name).write_text(text, encoding="utf-8")


def refused(project: Path) -> str:
    with pytest.raises(CatalogError) as caught:
        load_catalog(Project(project))
    return caught.value.message


def test_the_shipped_catalogue_has_the_plans_slos_and_workloads_of_the_contract(tmp_path: Path) -> None:
    catalog = load_catalog(Project(tmp_path))
    assert set(catalog.plans) >= PLANS
    assert {"chat", "demo"} <= set(catalog.slos)
    assert {"chat", "demo", "rag", "agent", "batch"} <= set(catalog.workloads)
    assert not catalog.hosts


def test_the_contract_s_two_plans_are_as_written_there(tmp_path: Path) -> None:
    catalog = load_catalog(Project(tmp_path))
    cpu = catalog.plan("cpu-32gb")
    assert (cpu.vcpus, cpu.ram_gb, cpu.disk_gb, cpu.memory_bandwidth_gb_s) == (32, 32, 400, 60)
    assert cpu.price is not None
    assert (cpu.price.amount, cpu.price.currency, cpu.price.per) == (1499, "MXN", "month")
    promise = cpu.promises["llama3.1:8b"]
    assert (promise.users, promise.tokens_per_s, promise.seconds_for_200_tokens, promise.slo) == (1, 5, 40, "chat")
    gpu = catalog.plan("gpu-a100-80")
    assert (gpu.vcpus, gpu.ram_gb, gpu.disk_gb) == (16, 128, 800)
    assert gpu.gpus[0].model_dump() == {
        "model": "A100-80GB", "count": 1, "vram_gb": 80, "memory_bandwidth_gb_s": 2039,
    }  # fmt: skip
    assert gpu.promises["llama3.1:8b"].users == 10


def test_the_sandbox_plan_is_two_cores_with_the_demo_slo_and_workload(tmp_path: Path) -> None:
    sandbox = load_catalog(Project(tmp_path)).plan("sandbox")
    assert (sandbox.vcpus, sandbox.ram_gb, sandbox.slo, sandbox.workload) == (2, 4, "demo", "demo")
    assert "this machine" in sandbox.title.lower()


def test_an_slo_becomes_what_the_search_works_with(tmp_path: Path) -> None:
    slo = load_catalog(Project(tmp_path)).slo("demo").to_slo()
    assert (slo.ttft_s, slo.tpot_s, slo.e2e_s, slo.attainment) == (2.0, 0.4, None, 0.8)


def test_a_project_s_file_replaces_the_shipped_one(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN)
    catalog = load_catalog(Project(project))
    assert list(catalog.plans) == ["small"]
    assert catalog.plan("small").slo == "chat"
    assert "gemma3:270m" in catalog.models


def test_an_unknown_key_is_refused_with_file_line_and_the_nearest_key(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN.replace("vcpus", "vcpu"))
    assert refused(project) == "inventory/plans.yml:2: unknown key 'vcpu' in plan small; did you mean 'vcpus'?"


def test_an_unknown_key_deep_inside_names_its_own_line(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN + "  gpus:\n    - model: L4\n      vram: 24\n")
    message = refused(project)
    assert message == "inventory/plans.yml:7: unknown key 'vram' in plan small, gpus, 0; did you mean 'vram_gb'?"


def test_a_key_of_a_promise_is_checked_too(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN + '  promises:\n    "llama3.1:8b": {user: 3}\n')
    assert "inventory/plans.yml:6: unknown key 'user'" in refused(project)
    assert "did you mean 'users'?" in refused(project)


def test_a_plan_without_its_memory_is_refused(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN.replace("  ram_gb: 4\n", ""))
    assert refused(project) == "inventory/plans.yml:1: missing key 'ram_gb' in plan small"


def test_a_wrong_value_is_refused_with_its_line(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN.replace("ram_gb: 4", "ram_gb: plenty"))
    message = refused(project)
    assert message.startswith("inventory/plans.yml:3: 'ram_gb' in plan small should be a valid number")
    assert message.endswith("not 'plenty'")


def test_every_mistake_in_a_file_is_listed(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN.replace("vcpus", "vcpu").replace("ram_gb: 4", "ram_gb: -4"))
    lines = refused(project).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["inventory/plans.yml:3", "inventory/plans.yml:2"]


def test_a_name_given_twice_is_refused_with_its_line(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN + ONE_PLAN)
    assert refused(project).startswith("inventory/plans.yml:5: found duplicate key")


def test_text_that_is_not_yaml_is_refused_with_its_line(project: Path) -> None:
    put(project, "plans.yml", "small:\n  vcpus: [2\n")
    assert refused(project).startswith("inventory/plans.yml:3: ")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "small: 3\n", "3: {}\n"])
def test_a_file_that_is_no_mapping_of_entries_is_refused(project: Path, text: str) -> None:
    put(project, "plans.yml", text)
    assert refused(project).startswith("inventory/plans.yml:1: ")


def test_bytes_that_are_not_text_are_refused(project: Path) -> None:
    (project / "inventory" / "plans.yml").write_bytes(b"small: \xff\xfe")
    assert refused(project) == "inventory/plans.yml: not UTF-8 text (byte 7)"


def test_a_plan_that_names_no_such_slo_is_refused(project: Path) -> None:
    put(project, "plans.yml", ONE_PLAN + "  slo: chta\n")
    assert refused(project) == (
        "inventory/plans.yml:5: plan small names SLO 'chta', which does not exist; did you mean 'chat'?"
    )


def test_hosts_are_read_with_their_defaults(project: Path) -> None:
    put(project, "hosts.yml", "lab:\n  address: 192.0.2.7\n  user: admin\n  plan: cpu-32gb\n")
    host = load_catalog(Project(project)).host("lab")
    assert (host.address, host.port, host.user, host.plan, host.become) == ("192.0.2.7", 22, "admin", "cpu-32gb", True)


def test_a_host_of_an_unknown_plan_is_refused(project: Path) -> None:
    put(project, "hosts.yml", "lab:\n  address: 192.0.2.7\n  plan: cpu-32\n")
    assert "inventory/hosts.yml:3: host lab names plan 'cpu-32'" in refused(project)
    assert "did you mean 'cpu-32gb'?" in refused(project)


def test_an_unknown_name_offers_the_nearest(tmp_path: Path) -> None:
    catalog = load_catalog(Project(tmp_path))
    with pytest.raises(UsageError, match="no plan cpu-32g; nearest: cpu-32gb") as caught:
        catalog.plan("cpu-32g")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="no SLO chatt; nearest: chat"):
        catalog.slo("chatt")
    with pytest.raises(UsageError, match="no workload ragg; nearest: rag"):
        catalog.workload("ragg")


def test_an_unknown_model_is_named_with_the_nearest_and_exits_5(tmp_path: Path) -> None:
    catalog = load_catalog(Project(tmp_path))
    with pytest.raises(ModelUnavailable, match="no model nope:1b; nearest: ") as caught:
        catalog.model("nope:1b")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("llama3.1:9b", "llama3.1:8b"),
        ("lama3.1:8b", "llama3.1:8b"),
        ("gema3:27b", "gemma3:27b"),
        ("lama3.1", "llama3.1:8b"),
        ("nope:1b", ":1b"),
    ],
)
def test_the_nearest_model_is_of_the_same_family_or_size(tmp_path: Path, wrong: str, right: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        load_catalog(Project(tmp_path)).model(wrong)
    assert caught.value.message.partition("nearest: ")[2].split(", ")[0].endswith(right)


@pytest.mark.parametrize(
    ("reference", "name", "variant"),
    [
        ("llama3.1:8b", "llama3.1:8b", None),
        ("llama3.1", "llama3.1:8b", None),
        ("llama3.1:latest", "llama3.1:8b", None),
        ("LLAMA3.1:8B", "llama3.1:8b", None),
        ("llama3.1:8b-instruct-q4_K_M", "llama3.1:8b", "q4_K_M"),
        ("llama3.1:8b-instruct-q8_0", "llama3.1:8b", "q8_0"),
        ("llama3.1:70b-instruct-q4_k_m", "llama3.1:70b", "q4_K_M"),
        ("gemma3:27b-it-q8_0", "gemma3:27b", "q8_0"),
        ("gemma3:270m", "gemma3:270m", None),
        ("phi4", "phi4:14b", None),
        ("gpt-oss:20b", "gpt-oss:20b", None),
    ],
)
def test_a_reference_resolves_to_its_model_and_variant(
    tmp_path: Path, reference: str, name: str, variant: str | None
) -> None:
    entry = load_catalog(Project(tmp_path)).model(reference)
    assert entry.name == name
    assert entry.variant_named(reference) == variant


def test_no_two_models_answer_to_the_same_reference(tmp_path: Path) -> None:
    seen: dict[str, str] = {}
    for entry in load_catalog(Project(tmp_path)).models.values():
        for reference in {name.lower() for name in entry.references}:
            assert seen.setdefault(reference, entry.name) == entry.name, reference
