import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import ModelEntry
from deployctl.sizing.show import from_show
from deployctl.sizing.weights import file_bytes, tensors

# Sizes of the file's tensors as llama.cpp prints them, in GiB and bits per weight.
PRINTED = [
    ("llama3.1:8b", "q4_K_M", 4.58, "llama.cpp, tools/quantize/README.md (Llama 3.1 8B)"),
    ("llama3.1:8b", "q5_K_M", 5.33, "llama.cpp, tools/quantize/README.md (Llama 3.1 8B)"),
    ("llama3.1:8b", "q6_K", 6.14, "llama.cpp, tools/quantize/README.md (Llama 3.1 8B)"),
    ("llama3.1:8b", "q8_0", 7.95, "llama.cpp, tools/quantize/README.md (Llama 3.1 8B)"),
    ("llama3.1:8b", "fp16", 14.96, "github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference"),
    (
        "llama3.1:70b",
        "q4_K_M",
        39.59,
        "github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference",
    ),
    ("llama3.1:70b", "q5_K_M", 46.52, "dranger003 in llama.cpp pull request 6745 (Llama 3 70B)"),
    ("llama3.1:70b", "q6_K", 53.91, "dranger003 in llama.cpp pull request 6745 (Llama 3 70B)"),
    ("llama3.1:70b", "q8_0", 69.83, "dranger003 in llama.cpp pull request 6745 (Llama 3 70B)"),
    ("llama3.1:70b", "fp16", 131.43, "dranger003 in llama.cpp pull request 6745 (Llama 3 70B)"),
    ("qwen2.5:7b", "q8_0", 7.54, "llama.cpp pull request 16894 (qwen2 7B Q8_0)"),
    ("llama3.2:3b", "q4_K_M", 1.87, "github.com/geerlingguy/ai-benchmarks/issues/54"),
]


@pytest.mark.parametrize(("name", "variant", "gib", "source"), PRINTED, ids=[f"{row[0]}-{row[1]}" for row in PRINTED])
def test_the_estimate_is_within_one_percent_of_what_llama_cpp_prints(
    catalog: Catalog, name: str, variant: str, gib: float, source: str
) -> None:
    assert file_bytes(catalog.model(name), variant) / 1024**3 == pytest.approx(gib, rel=0.01), source


def test_the_estimate_of_the_sandbox_s_file_is_within_one_percent(catalog: Catalog) -> None:
    # Rows of 640 are no whole K-blocks: most tensors fall back to Q5_0 and Q8_0, as in the file itself.
    gemma = catalog.model("gemma3:270m")
    assert file_bytes(gemma, "q4_K_M") == pytest.approx(253_113_024, rel=0.03)


def test_the_facts_imply_the_parameters_that_the_maker_states(catalog: Catalog) -> None:
    for entry in catalog.models.values():
        implied = sum(tensor.elements for tensor in tensors(entry))
        assert implied == pytest.approx(entry.parameters, rel=1e-3), entry.name
        assert implied <= entry.parameters, entry.name


def test_estimated_sizes_in_the_catalogue_are_this_module_s(catalog: Catalog) -> None:
    for entry in catalog.models.values():
        for name, variant in entry.variants.items():
            if variant.estimated:
                assert variant.bytes == file_bytes(entry, name), f"{entry.name} {name}"


def test_gpt_oss_s_experts_are_in_mxfp4(catalog: Catalog) -> None:
    # openai/gpt-oss-20b, model card: a checkpoint of 12.8 GiB.
    assert file_bytes(catalog.model("gpt-oss:20b"), "mxfp4") / 1024**3 == pytest.approx(12.8, rel=0.01)


def test_a_mixture_s_active_parameters_are_those_of_the_model_card(catalog: Catalog) -> None:
    # Mixtral 8x7B: 12.9B active with the input embedding of 0.13B (arXiv:2401.04088); gpt-oss: 3.6B and 5.1B (cards).
    for name, billions in (("mixtral:8x7b", 12.9 - 0.13), ("gpt-oss:20b", 3.6), ("gpt-oss:120b", 5.1)):
        active = catalog.model(name).active_parameters
        assert active is not None
        assert active / 1e9 == pytest.approx(billions, rel=0.01)


def deepseek(**facts: int) -> ModelEntry:
    return from_show(
        {"general.architecture": "deepseek2"} | {f"deepseek2.{key}": value for key, value in facts.items()}
    )


def test_deepseek_has_the_parameters_of_its_card_in_all_and_per_token() -> None:
    # DeepSeek-R1's model card: 671 B parameters, 37 B of them activated for a token; its config.json has the facts.
    r1 = deepseek(
        **{
            "block_count": 61, "embedding_length": 7168, "feed_forward_length": 18432, "context_length": 163840,
            "vocab_size": 129280, "attention.head_count": 128, "attention.head_count_kv": 1,
            "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
            "attention.value_length_mla": 128, "attention.kv_lora_rank": 512, "attention.q_lora_rank": 1536,
            "rope.dimension_count": 64, "expert_count": 256, "expert_used_count": 8, "expert_shared_count": 1,
            "expert_feed_forward_length": 2048, "leading_dense_block_count": 3,
        }
    )  # fmt: skip
    assert r1.parameters == pytest.approx(671e9, rel=0.005)
    assert r1.active_parameters == pytest.approx(37e9, rel=0.03)
    # DeepSeek-V2-Lite's card: 15.7 B in all, 2.4 B activated (the input embedding of 0.2 B is not counted here).
    lite = deepseek(
        **{
            "block_count": 27, "embedding_length": 2048, "feed_forward_length": 10944, "context_length": 163840,
            "vocab_size": 102400, "attention.head_count": 16, "attention.head_count_kv": 1,
            "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
            "attention.value_length_mla": 128, "attention.kv_lora_rank": 512, "rope.dimension_count": 64,
            "expert_count": 64, "expert_used_count": 6, "expert_shared_count": 2, "expert_feed_forward_length": 1408,
            "leading_dense_block_count": 1,
        }
    )  # fmt: skip
    assert lite.parameters == pytest.approx(15.7e9, rel=0.01)
    assert lite.active_parameters == pytest.approx(2.4e9, rel=0.05)
