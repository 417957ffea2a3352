from typing import Any

import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.errors import ModelUnavailable
from deployctl.sizing.memory import kv_bytes
from deployctl.sizing.show import from_show

# What Ollama's docs/api.md shows under "Show Model Information", and the header of the sandbox's Gemma 3.
LLAMA = {
    "general.architecture": "llama", "general.basename": "Meta-Llama-3", "general.file_type": 2,
    "general.parameter_count": 8030261248, "general.quantization_version": 2, "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8, "llama.attention.layer_norm_rms_epsilon": 0.00001, "llama.block_count": 32,
    "llama.context_length": 8192, "llama.embedding_length": 4096, "llama.feed_forward_length": 14336,
    "llama.rope.dimension_count": 128, "llama.rope.freq_base": 500000, "llama.vocab_size": 128256,
    "tokenizer.ggml.tokens": None,
}  # fmt: skip
GEMMA = {
    "general.architecture": "gemma3", "general.file_type": 15, "general.parameter_count": 268098176,
    "gemma3.attention.head_count": 4, "gemma3.attention.head_count_kv": 1, "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256, "gemma3.attention.sliding_window": 512, "gemma3.block_count": 18,
    "gemma3.context_length": 32768, "gemma3.embedding_length": 640, "gemma3.feed_forward_length": 2048,
}  # fmt: skip


def test_llama_s_answer_gives_the_facts_of_the_catalogue(catalog: Catalog) -> None:
    shown, known = from_show(LLAMA, name="llama3:8b"), catalog.model("llama3:8b")
    for field in ("parameters", "layers", "embedding", "heads", "kv_heads", "key_length", "value_length", "vocabulary"):
        assert getattr(shown, field) == getattr(known, field), field
    assert shown.default == "q4_0"
    assert shown.variants["q4_0"].bytes == pytest.approx(known.variants["q4_0"].bytes, rel=0.02)


def test_gemma_s_answer_keeps_its_windows(catalog: Catalog) -> None:
    assert kv_bytes(from_show(GEMMA), 4096, 4) == kv_bytes(catalog.model("gemma3:270m"), 4096, 4)


def test_the_server_s_own_size_and_quantization_win() -> None:
    shown = from_show(GEMMA, name="mine:latest", size=291_000_000, quantization="Q8_0")
    assert shown.default == "q8_0"
    assert shown.variants["q8_0"].bytes == 291_000_000
    assert not shown.variants["q8_0"].estimated


def test_a_list_of_head_counts_is_kept_by_layer() -> None:
    assert from_show(LLAMA | {"llama.attention.head_count_kv": [8] * 16 + [0] * 16}).kv_heads_by_layer[15:17] == (8, 0)


def test_a_mixture_s_idle_experts_do_not_count_as_active() -> None:
    # Mixtral 8x7B: 46.7B parameters, two of eight experts active: 12.9B (arXiv:2401.04088)
    mixtral = LLAMA | {
        "general.parameter_count": 46702792704, "llama.expert_count": 8, "llama.expert_used_count": 2,
        "llama.vocab_size": 32000,
    }  # fmt: skip
    active = from_show(mixtral).active_parameters
    assert active is not None
    assert active / 1e9 == pytest.approx(12.9, abs=0.2)


def test_a_window_of_an_unknown_pattern_counts_as_full() -> None:
    windowed = from_show(LLAMA | {"llama.attention.sliding_window": 4096})
    assert kv_bytes(windowed, 8192, 1) == kv_bytes(from_show(LLAMA), 8192, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"general.architecture": None},
        {"llama.block_count": None},
        {"llama.block_count": 10**9},
        {"llama.block_count": -1},
        {"llama.attention.head_count": 0},
        {"llama.embedding_length": "wide"},
        {"llama.context_length": True},
        {"general.parameter_count": 0},
        {"llama.attention.head_count_kv": 64},
        {"llama.vocab_size": 1 << 60},
    ],
)
def test_absurd_facts_are_refused_and_named(change: dict[str, Any]) -> None:
    with pytest.raises(ModelUnavailable, match=r"^odd:1b: its facts"):
        from_show(LLAMA | change, name="odd:1b")
