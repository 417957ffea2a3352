"""Builds a model's facts from what Ollama's /api/show says, for models that the catalogue does not list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from deployctl.catalog.models import QUALITY, ModelEntry, Variant
from deployctl.errors import ModelUnavailable

# general.file_type of GGUF (llama.cpp, enum llama_ftype).
FILE_TYPES = {
    0: "fp32", 1: "fp16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_K", 11: "q3_K_S", 12: "q3_K_M",
    13: "q3_K_L", 14: "q4_K_S", 15: "q4_K_M", 16: "q5_K_S", 17: "q5_K_M", 18: "q6_K", 32: "bf16", 38: "mxfp4",
}  # fmt: skip

# Which layers are full where only the window is in the header: each n-th (llama.cpp, set_swa_pattern per architecture).
FULL_EVERY = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "gptoss": 2,
    "cohere2": 4,
    "llama4": 4,
    "exaone4": 4,
}

# Vocabulary where neither a list of tokens nor a size is in the answer (/api/show leaves the tokens out).
VOCABULARY = {
    "llama": 128256, "gemma": 256000, "gemma2": 256000, "gemma3": 262144, "gemma3n": 262144, "qwen2": 152064,
    "qwen3": 151936, "qwen3moe": 151936, "phi3": 100352, "gptoss": 201088, "gpt-oss": 201088, "deepseek2": 129280,
}  # fmt: skip

MOST = 1 << 40


def from_show(
    model_info: Mapping[str, Any], *, name: str = "unknown", size: int | None = None, quantization: str | None = None
) -> ModelEntry:
    """Return the facts in ``model_info`` of /api/show, with one variant: what the server has.

    ``size`` is the file's size in bytes (/api/tags); without it the size is estimated from the parameters.
    ``quantization`` is ``details.quantization_level``. Raises ModelUnavailable when a needed key is missing or absurd.
    """
    architecture = model_info.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelUnavailable(f"{name}: its facts name no architecture")

    def whole(key: str, default: int | None = None) -> int:
        value = model_info.get(f"{architecture}.{key}", default)
        if isinstance(value, list) and value and all(_is_count(item) for item in value):
            value = max(value)
        if not _is_count(value):
            raise ModelUnavailable(f"{name}: its facts lack a usable {architecture}.{key}")
        return int(value)

    layers, embedding, heads = whole("block_count"), whole("embedding_length"), whole("attention.head_count")
    if not 0 < layers <= 4096 or heads == 0:
        raise ModelUnavailable(f"{name}: its facts are absurd ({layers} layers, {heads} heads)")
    head_length = embedding // heads
    tokens = model_info.get("tokenizer.ggml.tokens")
    vocabulary = len(tokens) if isinstance(tokens, list) and tokens else VOCABULARY.get(architecture, 131072)
    vocabulary = whole("vocab_size", vocabulary)
    facts: dict[str, Any] = {
        "name": name,
        "title": str(model_info.get("general.basename") or model_info.get("general.name") or name),
        "architecture": architecture,
        "layers": layers,
        "embedding": embedding,
        "heads": heads,
        "kv_heads": _kv_heads(model_info, architecture, layers, heads),
        "key_length": whole("attention.key_length", head_length),
        "value_length": whole("attention.value_length", head_length),
        "feed_forward": whole("feed_forward_length", 4 * embedding) or None,
        "sliding_window": whole("attention.sliding_window", 0) or None,
        "full_attention_every": FULL_EVERY.get(architecture, 1),
        "experts": whole("expert_count", 0),
        "experts_used": whole("expert_used_count", 0),
        "vocabulary": vocabulary,
        "context": whole("context_length"),
        "source": "/api/show of the server",
    }
    if facts["full_attention_every"] == 1:
        facts["sliding_window"] = None  # without a known pattern every layer counts as full: never too little
    if (rank := model_info.get(f"{architecture}.attention.kv_lora_rank")) and _is_count(rank):
        facts["mla"] = {"kv_lora_rank": rank, "rope_length": whole("rope.dimension_count", 64)}
    parameters = model_info.get("general.parameter_count")
    if not _is_count(parameters) or not parameters:
        raise ModelUnavailable(f"{name}: its facts lack a usable general.parameter_count")
    variant = _variant(model_info, quantization)
    facts |= {"parameters": parameters, "active_parameters": _active(facts, parameters), "default": variant}
    estimate = round(parameters * BITS_PER_WEIGHT[variant] / 8)
    facts["variants"] = {
        variant: Variant(
            bytes=size or estimate,
            tag=name.partition(":")[2] or None,
            estimated=size is None,
            source="the server's list of models" if size else "parameters × bits per weight",
        )
    }
    try:
        return ModelEntry.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ModelUnavailable(f"{name}: its facts contradict each other: {first['msg']}") from error


# Bits per weight of whole files of Llama 3.1 8B (llama.cpp, tools/quantize/README.md); mxfp4: 32 numbers of 4 bits and
# a scale of 8, with the rest of a gpt-oss file in bf16.
BITS_PER_WEIGHT = {
    "fp32": 32.0, "fp16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_K": 6.5633, "q5_K_M": 5.7036, "q5_K_S": 5.5704,
    "q5_1": 6.0, "q5_0": 5.5, "q4_K_M": 4.8944, "q4_K_S": 4.6672, "q4_1": 5.1, "q4_0": 4.65, "mxfp4": 4.9,
    "q3_K_L": 4.2979, "q3_K_M": 3.9960, "q3_K_S": 3.6429, "q2_K": 3.1593,
}  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _kv_heads(info: Mapping[str, Any], architecture: str, layers: int, heads: int) -> int | tuple[int, ...]:
    value = info.get(f"{architecture}.attention.head_count_kv", heads)
    if isinstance(value, list):
        return tuple(value) if len(value) == layers else max((item for item in value if _is_count(item)), default=heads)
    return int(value) if _is_count(value) else heads


def _active(facts: Mapping[str, Any], parameters: int) -> int | None:
    """Return the parameters that one token uses: everything but the experts that it does not pick."""
    if not facts["experts"] or not facts["experts_used"] or facts["feed_forward"] is None:
        return None
    one_expert = 3 * facts["embedding"] * facts["feed_forward"]
    idle = (facts["experts"] - facts["experts_used"]) * one_expert * facts["layers"]
    return max(1, parameters - idle) if idle < parameters else None


def _variant(info: Mapping[str, Any], quantization: str | None) -> str:
    if quantization:
        folded = {name.lower(): name for name in QUALITY} | {"f16": "fp16", "f32": "fp32"}
        found = folded.get(quantization.lower())
        if found is not None:
            return found
    kind = info.get("general.file_type")
    return FILE_TYPES.get(kind, "q4_K_M") if isinstance(kind, int) else "q4_K_M"
