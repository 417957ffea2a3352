import json
from string import Formatter
from typing import Any

import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.sizing.advise import Advice, advise, cheapest
from deployctl.sizing.calibration import Calibration
from deployctl.sizing.words import LABELS, SENTENCES

KEYS = {
    "variant", "quantization", "bytes", "fits", "slots", "context", "gpu_layers", "predicted", "verdict", "reasons",
    "cost", "sources",
}  # fmt: skip
MORE = {"plan", "model", "reference", "hardware", "slo", "hint", "calibration", "notes"}
PREDICTED = {
    "prefill_tok_s", "decode_tok_s", "decode_full_tok_s", "band", "users", "low", "high", "seconds_for_200_tokens",
}  # fmt: skip
COST = {"currency", "per_month", "per_user", "per_million_tokens"}
PARTS = {"weights", "kv", "compute", "prompt_cache", "runtime", "os_reserve", "total", "available"}


def ask(catalog: Catalog, plan_id: str, model: str, **options: Any) -> Advice:
    plan = catalog.plan(plan_id)
    return advise(
        plan, catalog.model(model), catalog.workload(plan.workload), catalog.slo(plan.slo),
        plans=catalog.plans.values(), models=catalog.models.values(), **options,
    )  # fmt: skip


def test_the_document_has_the_keys_of_the_contract(catalog: Catalog) -> None:
    for plan, model, fits in (
        ("cpu-32gb", "llama3.1:8b", True),
        ("cpu-8gb", "llama3.1:70b", False),
        ("cpu-64gb", "llama3.1:70b", True),
        ("sandbox", "gemma3:270m", True),
    ):
        document = json.loads(json.dumps(ask(catalog, plan, model).to_dict()))
        assert set(document) == KEYS | MORE
        assert set(document["bytes"]) == PARTS
        assert set(document["predicted"]) == PREDICTED
        assert set(document["cost"]) == COST
        assert document["fits"] is fits
        assert document["quantization"] == document["variant"].upper()


def test_the_32_core_plan_holds_what_the_reference_page_sells(catalog: Catalog) -> None:
    # Llama 3.1 8B on 32 cores: 5 to 15 tokens/s, 200 tokens in 15 to 40 s, 1 to 3 users; a few more are no surprise.
    predicted = ask(catalog, "cpu-32gb", "llama3.1:8b").predicted
    assert predicted is not None
    assert 5 <= predicted.decode_tok_s <= 15
    assert 13 <= predicted.seconds_for_200_tokens <= 40
    assert 1 <= predicted.users <= 5


def test_an_a100_holds_what_the_reference_page_sells(catalog: Catalog) -> None:
    # 100 to 300 tokens/s, 200 tokens in 1 to 2 s, 10 users at least.
    predicted = ask(catalog, "gpu-a100-80", "llama3.1:8b").predicted
    assert predicted is not None
    assert 100 <= predicted.decode_tok_s <= 300
    assert predicted.seconds_for_200_tokens <= 2
    assert predicted.users >= 10


def test_70b_on_a_cpu_is_slow_or_impossible_with_its_seconds_per_answer(catalog: Catalog) -> None:
    advice = ask(catalog, "cpu-64gb", "llama3.1:70b")
    assert advice.verdict == "slow or impossible"
    assert advice.hardware == "gpu"
    # 39.6 GiB of weights at 80 GB/s: no answer of 200 tokens in less than 200 x 42.5 / 80 = 106 s
    assert advice.predicted is not None
    assert advice.predicted.seconds_for_200_tokens >= 106
    assert any(f"{advice.predicted.seconds_for_200_tokens:.0f} s per answer" in reason for reason in advice.reasons)


def test_what_does_not_fit_is_an_answer_too(catalog: Catalog) -> None:
    advice = ask(catalog, "cpu-32gb", "llama3.1:70b")
    document = advice.to_dict()
    assert document["verdict"] == "does not fit"
    assert document["fits"] is False
    assert document["bytes"]["total"] > document["bytes"]["available"]
    assert advice.hint.startswith("--plan cpu-64gb")


def test_too_few_users_for_what_is_wanted_points_to_a_gpu(catalog: Catalog) -> None:
    advice = ask(catalog, "cpu-32gb", "llama3.1:8b", users=50)
    assert advice.verdict == "too few users"
    assert advice.hardware == "gpu"
    assert any("a GPU for the volume: 50 users" in reason for reason in advice.reasons)


def test_the_cost_is_the_price_over_the_users(catalog: Catalog) -> None:
    advice = ask(catalog, "cpu-32gb", "llama3.1:8b")
    assert advice.cost is not None
    assert advice.predicted is not None
    assert advice.cost.per_user == pytest.approx(1499 / advice.predicted.users)


def test_the_cheapest_plan_for_20_users_is_a_gpu_and_no_dearer_plan_is_taken(catalog: Catalog) -> None:
    args = (catalog.model("llama3.1:8b"), catalog.workload("chat"), catalog.slo("chat"))
    found = cheapest(catalog.plans.values(), *args, 20)
    assert found is not None
    assert found.plan.gpus
    assert found.predicted is not None
    assert found.predicted.users >= 20
    assert found.plan.price is not None
    for plan in catalog.plans.values():
        if plan.price is not None and plan.price.amount < found.plan.price.amount:
            other = advise(plan, *args)
            assert other.predicted is None or other.predicted.users < 20


def test_no_plan_holds_a_million_users(catalog: Catalog) -> None:
    args = (catalog.model("llama3.1:70b"), catalog.workload("chat"), catalog.slo("chat"))
    assert cheapest(catalog.plans.values(), *args, 1_000_000) is None


def test_measured_records_correct_the_speed_and_are_named(catalog: Catalog) -> None:
    plain = ask(catalog, "cpu-32gb", "llama3.1:8b", variant="q4_K_M").predicted
    advice = ask(catalog, "cpu-32gb", "llama3.1:8b", variant="q4_K_M", calibration=Calibration(0.8, 1.1, 5, "cpu-32gb"))
    assert plain is not None
    assert advice.predicted is not None
    assert advice.predicted.decode_tok_s == pytest.approx(0.8 * plain.decode_tok_s)
    assert "calibrated from 5 runs measured on cpu-32gb: speeds × 0.80" in advice.reasons
    assert advice.to_dict()["calibration"] == {"factor": 0.8, "band": 1.1, "runs": 5, "on": "cpu-32gb"}


def test_the_advice_speaks_spanish(catalog: Catalog) -> None:
    advice = ask(catalog, "cpu-64gb", "llama3.1:70b", lang="es")
    assert any("lento o imposible en CPU" in reason for reason in advice.reasons)
    english = ask(catalog, "cpu-64gb", "llama3.1:70b")
    assert not set(advice.reasons) & set(english.reasons)


def test_every_sentence_is_there_in_both_languages_with_the_same_figures() -> None:
    for key, texts in (SENTENCES | LABELS).items():
        figures = [{name for _, name, _, _ in Formatter().parse(text) if name} for text in texts.values()]
        assert set(texts) == {"en", "es"}, key
        assert figures[0] == figures[1], key


def test_the_band_of_users_holds_the_prediction(catalog: Catalog) -> None:
    for plan in catalog.plans:
        predicted = ask(catalog, plan, "llama3.2:1b").predicted
        if predicted is not None:
            assert predicted.low <= predicted.users <= predicted.high
