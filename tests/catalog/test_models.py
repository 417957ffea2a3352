from pathlib import Path

import pytest
from pydantic import ValidationError

from deployctl.catalog.load import load_catalog
from deployctl.catalog.models import ModelEntry, quality
from deployctl.resources import Project

MODELS = load_catalog(Project(Path("/nonexistent"))).models

FACTS = {
    "name": "m:1b", "title": "m", "architecture": "llama", "parameters": 1000, "layers": 4, "embedding": 64, "heads": 8,
    "kv_heads": 2, "key_length": 8, "value_length": 8, "vocabulary": 100, "context": 2048, "default": "q4_0",
    "variants": {"q4_0": {"bytes": 600, "estimated": True}}, "source": "hand",
}  # fmt: skip


def test_the_catalogue_covers_the_families_of_the_contract() -> None:
    families = {entry.family for entry in MODELS.values()}
    assert families >= {
        "llama3.1", "llama3.2", "llama3.3", "qwen2.5", "qwen3", "gemma2", "gemma3", "mistral", "mixtral", "phi3",
        "phi4", "deepseek-r1", "gpt-oss",
    }  # fmt: skip
    assert {"gemma3:1b", "gemma3:4b", "gemma3:12b", "gemma3:27b", "llama3.1:405b"} <= set(MODELS)


@pytest.mark.parametrize("entry", MODELS.values(), ids=MODELS.keys())
def test_every_model_and_variant_says_where_its_figures_come_from(entry: ModelEntry) -> None:
    assert entry.source
    assert all(variant.source for variant in entry.variants.values())


@pytest.mark.parametrize("entry", MODELS.values(), ids=MODELS.keys())
def test_a_better_variant_is_never_smaller(entry: ModelEntry) -> None:
    sizes = [entry.variants[name].bytes for name in sorted(entry.variants, key=quality)]
    assert sizes == sorted(sizes, reverse=True)


def test_gemma_3_keeps_every_sixth_layer_full() -> None:
    # Gemma 3 technical report, section 2: five local layers for each global one.
    windowed = MODELS["gemma3:27b"].windowed_by_layer
    assert windowed[:6] == (True,) * 5 + (False,)
    assert windowed.count(False) == 10


def test_gpt_oss_alternates_windows_and_full_layers() -> None:
    assert MODELS["gpt-oss:20b"].windowed_by_layer.count(True) == 12


def test_the_short_name_is_the_default_variant_and_the_others_have_their_own_tag() -> None:
    entry = MODELS["llama3.1:8b"]
    assert entry.reference("q4_K_M") == "llama3.1:8b"
    assert entry.reference("q8_0") == "llama3.1:8b-instruct-q8_0"


def test_the_sandbox_s_file_is_served_under_the_short_name() -> None:
    entry = MODELS["gemma3:270m"]
    assert entry.reference("q4_K_M") == "gemma3:270m"
    assert entry.variants["q4_K_M"].bytes == 253_113_024
    assert entry.variants["q4_K_M"].origin == "package"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_heads": [2, 2]}, "kv_heads lists 2 layers"),
        ({"kv_heads": 9}, "kv_heads must lie between"),
        ({"default": "q8_0"}, "default variant q8_0 is not among"),
        ({"variants": {"q9": {"bytes": 1, "estimated": True}}, "default": "q9"}, "unknown variant q9"),
        ({"variants": {"q4_0": {"bytes": 1}}}, "needs its source, or estimated"),
        ({"experts": 4, "experts_used": 8}, "experts_used is above"),
        ({"active_parameters": 2000}, "active_parameters is above"),
        ({"tag_pattern": "1b"}, "tag_pattern must contain"),
        ({"layers": 0}, "greater than 0"),
    ],
)
def test_facts_that_contradict_each_other_are_refused(change: dict[str, object], said: str) -> None:
    ModelEntry.model_validate(FACTS)
    with pytest.raises(ValidationError, match=said):
        ModelEntry.model_validate(FACTS | change)
