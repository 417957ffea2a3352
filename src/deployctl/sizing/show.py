"""Builds a model's facts from what Ollama's /api/show says, for models that the catalogue does not list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from deployctl.catalog.models import QUALITY, ModelEntry, Variant
from deployctl.errors import ModelUnavailable
from deployctl.sizing.weights import file_bytes, tensors

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
    "exaone-moe": 4,
    "olmo2": 4,
    "afmoe": 4,
    "plamo3": 8,
}

# Vocabulary where neither a list of tokens nor a size is in the answer (/api/show leaves the tokens out).
VOCABULARY = {
    "llama": 128256, "gemma": 256000, "gemma2": 256000, "gemma3": 262144, "gemma3n": 262144, "qwen2": 152064,
    "qwen3": 151936, "qwen3moe": 151936, "phi3": 100352, "gptoss": 201088, "gpt-oss": 201088, "deepseek2": 129280,
}  # fmt: skip

TIED = frozenset({"gemma", "gemma2", "gemma3"})
"""Architectures whose output is always the input embedding; others may share it, which the header's keys do not say."""

ONE_SLOT = ("mllama", "qwen3vl", "qwen35", "qwen3next", "lfm2", "nemotron_h")
"""Architectures for which Ollama forces OLLAMA_NUM_PARALLEL to 1 (the design note on Ollama)."""

FULL_ATTENTION_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
"""Hybrids whose header gives one number of heads for all layers: each n-th attends, the others are recurrent."""

MOST = 1 << 45


def from_show(
    model_info: Mapping[str, Any], *, name: str = "unknown", size: int | None = None, quantization: str | None = None
) -> ModelEntry:
    """Return the facts in ``model_info`` of /api/show, with one variant: what the server has.

    ``size`` is the file's size in bytes (/api/tags); without it the size is estimated from the tensors' shapes.
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
    kv_heads = _kv_heads(model_info, architecture, layers, heads)
    recurrent = sum(1 for count in kv_heads if count == 0) if isinstance(kv_heads, tuple) else 0
    kv_heads = _borrowed(kv_heads, layers, whole("attention.shared_kv_layers", 0))
    state = _state_elements(whole, embedding)
    facts: dict[str, Any] = {
        "name": name,
        "title": str(model_info.get("general.basename") or model_info.get("general.name") or name),
        "architecture": architecture,
        "layers": layers,
        "embedding": embedding,
        "heads": heads,
        "kv_heads": kv_heads,
        "key_length": whole("attention.key_length", head_length),
        "value_length": whole("attention.value_length", head_length),
        "feed_forward": whole("expert_feed_forward_length", whole("feed_forward_length", 4 * embedding)) or None,
        "sliding_window": whole("attention.sliding_window", 0) or None,
        "full_attention_every": _full_every(model_info, architecture),
        "windowed": _windowed(model_info, architecture, layers),
        "window_key_length": whole("attention.key_length_swa", 0) or None,
        "window_value_length": whole("attention.value_length_swa", 0) or None,
        "recurrent_layers": recurrent if state else 0,
        "state_elements": state,
        "forced_slots": 1 if architecture.startswith(ONE_SLOT) else None,
        "experts": whole("expert_count", 0),
        "experts_used": whole("expert_used_count", 0),
        "shared_experts": whole("expert_shared_count", 0),
        "dense_layers": whole("leading_dense_block_count", 0),
        "dense_feed_forward": whole("feed_forward_length", 0) or None,
        "vocabulary": vocabulary,
        "context": whole("context_length"),
        "tied_embeddings": architecture in TIED,
        "source": "/api/show of the server",
    }
    if facts["full_attention_every"] == 1 and facts["windowed"] is None:
        facts["sliding_window"] = None  # without a known pattern every layer counts as full: never too little
    # Files converted before llama.cpp knew how (April 2025) lack the key: their cache holds every head in full.
    rank = whole("attention.kv_lora_rank", 0)
    if rank and (f"{architecture}.attention.key_length_mla" in model_info or kv_heads == 1):
        facts["mla"] = {
            "kv_lora_rank": rank,
            "rope_length": whole("rope.dimension_count", 64),
            "q_lora_rank": whole("attention.q_lora_rank", 0) or None,
            "key_length": whole("attention.key_length_mla", facts["key_length"]),
            "value_length": whole("attention.value_length_mla", facts["value_length"]),
        }
    variant = _variant(model_info, quantization)
    parameters = model_info.get("general.parameter_count")
    facts |= {"parameters": parameters, "default": variant}
    facts["variants"] = {variant: Variant(bytes=size or 1, tag=name.partition(":")[2] or None, source="the server")}
    try:
        rough = ModelEntry.model_validate(facts | {"parameters": MOST})
        implied = sum(tensor.elements for tensor in tensors(rough))
        if parameters is None:  # a header that was read no further than the tokenizer
            facts["parameters"] = implied
        elif not _is_count(parameters) or parameters == 0:
            raise ModelUnavailable(f"{name}: its facts lack a usable general.parameter_count")
        elif not rough.tied_embeddings and implied - vocabulary * embedding <= parameters < implied:
            facts["tied_embeddings"] = True  # fewer parameters than an output of its own would make
        facts["active_parameters"] = _active(facts)
        entry = ModelEntry.model_validate(facts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ModelUnavailable(f"{name}: its facts contradict each other: {first['msg']}") from error
    if size is None:
        estimate = Variant(bytes=file_bytes(entry, variant), tag=name.partition(":")[2] or None, estimated=True)
        entry = entry.model_copy(update={"variants": {variant: estimate}})
    return entry


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def _kv_heads(info: Mapping[str, Any], architecture: str, layers: int, heads: int) -> int | tuple[int, ...]:
    value = info.get(f"{architecture}.attention.head_count_kv", heads)
    every = info.get(f"{architecture}.full_attention_interval", FULL_ATTENTION_EVERY.get(architecture))
    if _is_count(value) and _is_count(every) and every:
        return tuple(value if (layer + 1) % every == 0 else 0 for layer in range(layers))
    if isinstance(value, list):
        return tuple(value) if len(value) == layers else max((item for item in value if _is_count(item)), default=heads)
    return int(value) if _is_count(value) else heads


def _borrowed(kv_heads: int | tuple[int, ...], layers: int, shared: int) -> int | tuple[int, ...]:
    """Return the heads with none in the last ``shared`` layers, which read an earlier layer's cache (Gemma 3n, 4)."""
    if not 0 < shared < layers:
        return kv_heads
    by_layer = (kv_heads,) * layers if isinstance(kv_heads, int) else kv_heads
    return by_layer[: layers - shared] + (0,) * shared


def _state_elements(whole: Callable[..., int], embedding: int) -> int:
    """Return the numbers that a recurrent layer keeps per sequence: n_embd_r + n_embd_s in llama-hparams.cpp."""
    kept = whole("shortconv.l_cache", 0)
    if kept:
        return embedding * (kept - 1)
    inner, state = whole("ssm.inner_size", 0), whole("ssm.state_size", 0)
    kernel, groups = whole("ssm.conv_kernel", 0), whole("ssm.group_count", 0)
    return max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner


def _windowed(info: Mapping[str, Any], architecture: str, layers: int) -> tuple[bool, ...] | None:
    """Return which layers slide, where the header says it layer by layer."""
    stated = info.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(stated, list) and len(stated) == layers and all(isinstance(entry, bool | int) for entry in stated):
        return tuple(bool(entry) for entry in stated)
    return None


def _full_every(info: Mapping[str, Any], architecture: str) -> int:
    stated = info.get(f"{architecture}.attention.sliding_window_pattern")
    return stated if _is_count(stated) and stated else FULL_EVERY.get(architecture, 1)


def _active(facts: Mapping[str, Any]) -> int | None:
    """Return the parameters that one token uses: all but the experts that it does not pick and the input embedding."""
    if not facts["experts"] or not facts["experts_used"]:
        return None
    one_expert = 3 * facts["embedding"] * (facts["feed_forward"] or 4 * facts["embedding"])
    idle = (facts["experts"] - facts["experts_used"]) * one_expert * (facts["layers"] - facts["dense_layers"])
    table = 0 if facts.get("tied_embeddings") else facts["vocabulary"] * facts["embedding"]
    active = int(facts["parameters"]) - idle - table
    return active if active > 0 else None


def _variant(info: Mapping[str, Any], quantization: str | None) -> str:
    if quantization:
        folded = {name.lower(): name for name in QUALITY} | {"f16": "fp16", "f32": "fp32"}
        found = folded.get(quantization.lower())
        if found is not None:
            return found
    kind = info.get("general.file_type")
    return FILE_TYPES.get(kind, "q4_K_M") if isinstance(kind, int) else "q4_K_M"
