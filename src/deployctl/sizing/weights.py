"""Estimates the size of a GGUF file from the shapes of its tensors and llama.cpp's mixture of types per variant.

For what has no published size. The mixtures are those of ``llama_tensor_get_type`` (llama.cpp, src/llama-quant.cpp):
the K-quants give some tensors of some layers more bits. Known files come out within half a percent
(tests/sizing/published_memory.yml).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deployctl.catalog.models import ModelEntry

# Bits per weight of a tensor type: a block's bytes over its numbers (ggml-common.h).
BITS = {
    "F32": 32.0, "F16": 16.0, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_1": 6.0, "Q5_0": 5.5, "Q4_K": 4.5,
    "Q4_1": 5.0, "Q4_0": 4.5, "MXFP4": 4.25, "Q3_K": 3.4375, "Q2_K": 2.625,
}  # fmt: skip

# The type of most tensors, by variant.
BASE = {
    "fp32": "F32", "fp16": "F16", "bf16": "F16", "q8_0": "Q8_0", "q6_K": "Q6_K", "q5_K_M": "Q5_K", "q5_K_S": "Q5_K",
    "q5_1": "Q5_1", "q5_0": "Q5_0", "q4_K_M": "Q4_K", "q4_K_S": "Q4_K", "q4_1": "Q4_1", "q4_0": "Q4_0",
    "q3_K_L": "Q3_K", "q3_K_M": "Q3_K", "q3_K_S": "Q3_K", "q2_K": "Q2_K",
}  # fmt: skip

# K-quants work on rows of whole blocks of 256; other rows fall back to a type with blocks of 32.
FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
K_BLOCK = 256

FUSED = frozenset({"phi3"})
"""Architectures whose queries, keys and values are one tensor."""

HEADER_BYTES_PER_TOKEN = 45
"""The tokenizer in the header: 25 bytes per token for Gemma's, 61 with Llama 3's merges."""


@dataclass(frozen=True)
class Tensor:
    """One weight matrix: what it is, its layer (None: outside the layers), row length and number of elements."""

    kind: str
    layer: int | None
    row: int
    elements: int


def file_bytes(model: ModelEntry, variant: str) -> int:
    """Return the estimated size in bytes of the file of ``variant``; vision projectors are not in it."""
    if variant not in BASE:  # mixtures that name no type per tensor: gpt-oss has its experts in MXFP4, the rest in BF16
        experts = sum(tensor.elements for tensor in tensors(model) if "ffn" in tensor.kind)
        return round((experts * BITS["MXFP4"] + max(0, model.parameters - experts) * 16) / 8)
    total = 0.0
    listed = 0
    for tensor in tensors(model):
        kind = tensor_type(model, variant, tensor)
        if kind in FALLBACK and tensor.row % K_BLOCK:
            kind = FALLBACK[kind]
        total += tensor.elements * BITS[kind] / 8
        listed += tensor.elements
    norms = max(0, model.parameters - listed)  # one-dimensional tensors stay F32
    return round(total + min(norms, listed // 500) * 4 + model.vocabulary * HEADER_BYTES_PER_TOKEN)


def table_bytes(model: ModelEntry, variant: str) -> int:
    """Return the bytes of the input embedding in ``variant``."""
    table = next(tensors(model))
    if variant not in BASE:  # gpt-oss: everything but the experts is BF16
        return table.elements * 2
    kind = tensor_type(model, variant, table)
    if kind in FALLBACK and table.row % K_BLOCK:
        kind = FALLBACK[kind]
    return round(table.elements * BITS[kind] / 8)


def tensors(model: ModelEntry) -> Iterator[Tensor]:
    """Yield the weight matrices that the facts imply."""
    width = model.embedding
    table = model.vocabulary * width
    yield Tensor("token_embd", None, width, table)
    if not model.tied_embeddings:
        yield Tensor("output", None, width, table)
    for layer, kv_heads in enumerate(model.kv_heads_by_layer):
        if model.mla is not None:
            yield from _latent_attention(model, layer)
            yield from _feed_forward(model, layer)
            continue
        queries, values = model.heads * model.key_length, model.heads * model.value_length
        keys_values = kv_heads * (model.key_length + model.value_length)
        if model.architecture in FUSED:
            yield Tensor("attn_qkv", layer, width, width * (queries + keys_values))
        else:
            yield Tensor("attn_q", layer, width, width * queries)
            yield Tensor("attn_k", layer, width, width * kv_heads * model.key_length)
            yield Tensor("attn_v", layer, width, width * kv_heads * model.value_length)
        yield Tensor("attn_output", layer, values, values * width)
        yield from _feed_forward(model, layer)


def _feed_forward(model: ModelEntry, layer: int) -> Iterator[Tensor]:
    width, length, count = model.embedding, model.feed_forward or 4 * model.embedding, max(1, model.experts)
    if layer < model.dense_layers:
        length, count = model.dense_feed_forward or length, 1
    yield Tensor("ffn_gate", layer, width, count * width * length)
    yield Tensor("ffn_up", layer, width, count * width * length)
    yield Tensor("ffn_down", layer, length, count * width * length)
    if model.shared_experts and layer >= model.dense_layers:
        shared = model.shared_experts * width * length
        yield Tensor("ffn_gate", layer, width, shared)
        yield Tensor("ffn_up", layer, width, shared)
        yield Tensor("ffn_down", layer, length, shared)


def _latent_attention(model: ModelEntry, layer: int) -> Iterator[Tensor]:
    """Yield the matrices of latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    mla = model.mla
    assert mla is not None
    width, rank = model.embedding, mla.kv_lora_rank
    keys, values = mla.key_length or model.key_length, mla.value_length or model.value_length
    queries = model.heads * keys
    if mla.q_lora_rank is not None:
        yield Tensor("attn_q", layer, width, width * mla.q_lora_rank)
        yield Tensor("attn_q", layer, mla.q_lora_rank, mla.q_lora_rank * queries)
    else:
        yield Tensor("attn_q", layer, width, width * queries)
    yield Tensor("attn_kv", layer, width, width * (rank + mla.rope_length))
    yield Tensor("attn_kv", layer, rank, rank * model.heads * (keys - mla.rope_length + values))
    yield Tensor("attn_output", layer, model.heads * values, model.heads * values * width)


def tensor_type(model: ModelEntry, variant: str, tensor: Tensor) -> str:
    """Return the type that llama.cpp gives to ``tensor`` in ``variant``, before falling back for odd rows."""
    base = BASE[variant]
    if base in {"F32", "F16", "Q8_0"}:
        return base
    if tensor.layer is None:
        return "Q6_K" if tensor.kind == "output" or model.tied_embeddings else base
    if not variant.startswith(("q2_K", "q3_K", "q4_K", "q5_K")):
        return base
    layer, layers = tensor.layer, model.layers
    more = _more_bits(layer, layers)
    if tensor.kind == "attn_v":
        return _attn_v(model, variant, base, more=more, layer=layer)
    if tensor.kind == "attn_qkv":
        return {"q3_K_M": "Q4_K", "q3_K_L": "Q4_K", "q4_K_M": "Q5_K", "q5_K_M": "Q6_K"}.get(variant, base)
    if tensor.kind == "attn_k" and model.experts == 8:
        return "Q8_0"
    if tensor.kind == "ffn_down":
        return _ffn_down(variant, base, more=more, layer=layer, layers=layers)
    if tensor.kind == "attn_output":
        if model.experts == 8 and base in {"Q2_K", "Q3_K", "Q4_K"}:
            return "Q5_K"
        return {"q2_K": "Q3_K", "q3_K_M": "Q4_K", "q3_K_L": "Q5_K"}.get(variant, base)
    return base


def _more_bits(layer: int, layers: int) -> bool:
    """Say whether a layer is one of those that the "M" mixtures give more bits: both ends and each third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _attn_v(model: ModelEntry, variant: str, base: str, *, more: bool, layer: int) -> str:
    if model.experts == 8:
        return "Q8_0"
    kind = base
    if variant in {"q4_K_M", "q5_K_M"} and more:
        kind = "Q6_K"
    elif variant == "q4_K_S" and layer < 4:
        kind = "Q5_K"
    elif variant == "q3_K_M":
        kind = "Q5_K" if layer < 2 else "Q4_K"
    elif variant == "q3_K_L":
        kind = "Q5_K"
    elif variant == "q2_K":
        kind = "Q4_K" if model.heads >= 4 * max(model.kv_heads_by_layer) else "Q3_K"
    # The eight heads of a 70B model that share their values make these tensors small: they get more bits.
    if model.layers == 80 and kind in {"Q3_K", "Q4_K"}:
        kind = "Q5_K"
    return kind


def _ffn_down(variant: str, base: str, *, more: bool, layer: int, layers: int) -> str:
    if variant in {"q4_K_M", "q5_K_M"}:
        return "Q6_K" if more else base
    if variant == "q4_K_S":
        return "Q5_K" if layer < layers // 8 else base
    if variant == "q3_K_M":
        return "Q5_K" if layer < layers // 16 else "Q4_K"
    if variant == "q3_K_L":
        return "Q5_K"
    return "Q3_K" if variant == "q2_K" else base
