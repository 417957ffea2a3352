from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import quality
from deployctl.errors import DoesNotFit, ModelUnavailable, UsageError
from deployctl.sizing import Capacity, Fit, choose
from deployctl.sizing.refuse import TooLarge

GIB = 1024**3


def fit(catalog: Catalog, plan_id: str, model: str, **options: Any) -> Fit:
    plan = catalog.plan(plan_id)
    entry = catalog.model(model)
    options = {"variant": entry.variant_named(model), "slo": catalog.slo(plan.slo), "plan": plan} | options
    workload = catalog.workload(options.pop("workload", plan.workload))
    return choose(entry, Capacity.of_plan(plan), workload, **options)


def test_the_sandbox_serves_its_own_file_with_a_few_slots(catalog: Catalog) -> None:
    found = fit(catalog, "sandbox", "gemma3:270m", variant="q4_K_M")
    assert found.reference == "gemma3:270m"
    assert 2 <= found.slots <= 4
    assert found.bytes.weights == 253_113_024
    assert found.gpu_layers == 0
    assert found.fits


def test_llama_8b_on_the_32_core_plan_is_quantized_with_a_few_slots(catalog: Catalog) -> None:
    # The reference page sells 1 to 3 users at 5 to 15 tokens/s there.
    found = fit(catalog, "cpu-32gb", "llama3.1:8b")
    assert quality("q4_0") >= quality(found.variant) > quality("q8_0")
    assert 2 <= found.slots <= 8


def test_the_context_holds_the_workload_s_99th_percentile(catalog: Catalog) -> None:
    for name in ("chat", "demo", "rag", "agent", "batch"):
        found = fit(catalog, "gpu-a100-80", "llama3.1:8b", workload=name)
        assert found.context >= catalog.workload(name).tokens_at(0.99)
        assert found.context % 256 == 0


def test_a_context_is_never_longer_than_the_model_was_trained_for(catalog: Catalog) -> None:
    assert fit(catalog, "gpu-a100-80", "llama2:7b", workload="agent").context == 4096
    with pytest.raises(UsageError, match="trained for 4096 tokens"):
        fit(catalog, "gpu-a100-80", "llama2:7b", context=8192)


def test_what_is_asked_for_is_what_comes(catalog: Catalog) -> None:
    found = fit(catalog, "cpu-64gb", "llama3.1:8b", variant="q8_0", slots=3, context=5000, kv_type="q8_0")
    assert (found.variant, found.slots, found.context, found.kv_type) == ("q8_0", 3, 5000, "q8_0")
    # 5,120 cells x 3 slots x 65,536 elements x 1.0625 bytes
    assert found.bytes.kv == 5120 * 3 * 65536 * 1.0625


def test_a_tag_with_a_variant_is_that_variant(catalog: Catalog) -> None:
    assert fit(catalog, "gpu-a100-80", "llama3.1:8b-instruct-q4_K_M").variant == "q4_K_M"


def test_a_variant_that_the_model_does_not_have_is_refused_with_those_it_has(catalog: Catalog) -> None:
    with pytest.raises(ModelUnavailable, match="has no variant q3_K_M; it has q4_0, q4_K_M"):
        fit(catalog, "cpu-64gb", "llama3.1:8b", variant="q3_K_M")


@pytest.mark.parametrize("options", [{"slots": 0}, {"context": 0}, {"kv_type": "q5_1"}])
def test_numbers_that_make_no_sense_are_refused(catalog: Catalog, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        fit(catalog, "cpu-64gb", "llama3.1:8b", **options)


def test_70b_on_32_gb_is_refused_with_every_part_and_what_to_try_next(catalog: Catalog) -> None:
    with pytest.raises(DoesNotFit) as caught:
        fit(catalog, "cpu-32gb", "llama3.1:70b", plans=catalog.plans.values(), models=catalog.models.values())
    message = caught.value.message
    assert message.startswith("llama3.1:70b (q4_K_M) needs 42.1 GiB, plan cpu-32gb has 32.0 GiB: weights 39.6 GiB, KV")
    assert "the smallest plan that fits: cpu-64gb" in message
    assert "the largest model of its kind that fits here: llama3.1:8b" in message
    assert caught.value.hint == "--plan cpu-64gb, or --model llama3.1:8b"
    assert caught.value.exit_code == 1


def test_the_refusal_carries_the_parts(catalog: Catalog) -> None:
    with pytest.raises(TooLarge) as caught:
        fit(catalog, "sandbox", "llama3.1:8b")
    sizes = caught.value.miss.bytes.to_dict()
    assert sizes["total"] > sizes["available"] == 4 * GIB


def test_a_disk_too_small_is_what_the_refusal_names(catalog: Catalog) -> None:
    machine = Capacity(64 * GIB, disk_bytes=3 * GIB, cpus=8)
    with pytest.raises(DoesNotFit, match=r"needs 5\.8 GiB of disk, this machine has 3\.0 GiB"):
        choose(catalog.model("llama3.1:8b"), machine, catalog.workload("chat"), variant="q4_K_M")


def test_a_model_larger_than_its_gpu_is_split_and_says_so(catalog: Catalog) -> None:
    found = fit(catalog, "gpu-rtx4090", "llama3.1:70b")
    assert 0 < found.gpu_layers < 81
    assert not found.fully_on_gpu
    assert any("layers fit on the GPU" in reason for reason in found.reasons)


def test_two_gpus_hold_what_one_does_not(catalog: Catalog) -> None:
    entry, chat = catalog.model("llama3.1:70b"), catalog.workload("chat")
    two = choose(entry, Capacity(128 * GIB, (24 * GIB,) * 2, cpus=16), chat, variant="q4_K_M", slots=1)
    assert two.fully_on_gpu  # 40 GiB of weights on 48 GiB: what the published table of two RTX 4090 shows


def test_nothing_below_q4_is_chosen_unless_asked(catalog: Catalog) -> None:
    for plan in catalog.plans:
        for name in catalog.models:
            try:
                found = fit(catalog, plan, name)
            except DoesNotFit:
                continue
            assert quality(found.variant) <= quality("q4_0"), (plan, name)


def test_what_is_chosen_fits(catalog: Catalog) -> None:
    for plan in catalog.plans:
        for name in ("llama3.2:1b", "llama3.1:8b", "gemma3:27b", "mixtral:8x7b", "llama3.1:70b"):
            try:
                found = fit(catalog, plan, name)
            except DoesNotFit:
                continue
            assert found.fits
            assert found.bytes.total <= found.bytes.available


NAMES = st.sampled_from(["llama3.2:1b", "llama3.1:8b", "qwen3:14b"])


@settings(deadline=None, max_examples=50)
@given(ram=st.integers(2, 96), more=st.integers(0, 64), name=NAMES)
def test_more_memory_never_gives_worse_quality(catalog: Catalog, ram: int, more: int, name: str) -> None:
    entry, chat = catalog.model(name), catalog.workload("chat")

    def rank(gib: int) -> int:
        try:
            return quality(choose(entry, Capacity(gib * GIB, cpus=8), chat, slots=2).variant)
        except DoesNotFit:
            return 1000

    assert rank(ram + more) <= rank(ram)


def test_the_refusal_names_every_lever_that_helps_with_the_rest_as_asked(catalog: Catalog) -> None:
    model, chat = catalog.model("llama3.1:8b"), catalog.workload("chat")
    machine = Capacity.of_plan(catalog.plan("cpu-32gb"))
    with pytest.raises(DoesNotFit) as caught:
        choose(model, machine, chat, variant="q8_0", slots=128, plans=catalog.plans.values())
    levers = dict(part.split() for part in caught.value.hint.split(", or "))
    # No smaller variant helps: 128 slots of 2,048 tokens are 32 GiB of KV cache alone.
    assert set(levers) == {"--slots", "--kv-type", "--context", "--plan"}
    slots = int(levers["--slots"])
    assert choose(model, machine, chat, variant="q8_0", slots=slots).fits
    with pytest.raises(DoesNotFit):
        choose(model, machine, chat, variant="q8_0", slots=slots + 1)
    assert choose(model, machine, chat, variant="q8_0", slots=128, kv_type=levers["--kv-type"]).fits  # type: ignore[arg-type]
    assert choose(model, machine, chat, variant="q8_0", slots=128, context=int(levers["--context"])).fits
    larger = Capacity.of_plan(catalog.plan(levers["--plan"]))
    assert choose(model, larger, chat, variant="q8_0", slots=128).fits


def test_a_refusal_words_no_refusals_of_what_it_tries(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 65,536 tokens every shorter context is tried as well: worded one within the other they would never end.
    module = import_module("deployctl.sizing.choose")
    worded: list[object] = []
    real = module.refusal
    monkeypatch.setattr(module, "refusal", lambda refused, *args, **kw: worded.append(1) or real(refused, *args, **kw))
    machine = Capacity.of_plan(catalog.plan("cpu-8gb"))
    with pytest.raises(DoesNotFit) as caught:
        choose(
            catalog.model("llama3.1:70b"), machine, catalog.workload("chat"), context=65536, slots=8,
            plans=catalog.plans.values(), models=catalog.models.values(),
        )  # fmt: skip
    assert len(worded) == 1
    assert "--model llama3.1:8b" in caught.value.hint
