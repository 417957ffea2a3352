"""Models: the facts of an architecture that memory and speed follow from, and the exact size of each variant."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from deployctl.catalog.base import Entry

# Quality order, best first; the place of a variant in it is its rank. Within a group of equal bits the K-quants come
# first: llama.cpp's own perplexity tables (tools/quantize/README.md) rank them so.
QUALITY = (
    "fp32", "fp16", "bf16", "q8_0", "q6_K", "q5_K_M", "q5_K_S", "q5_1", "q5_0",
    "q4_K_M", "mxfp4", "q4_K_S", "q4_1", "q4_0", "q3_K_L", "q3_K_M", "q3_K_S", "q2_K",
)  # fmt: skip
LOWEST_UNASKED = "q4_0"
"""The lowest quality that is ever chosen without being asked for."""

ESTIMATE = "estimated: shapes of the tensors and llama.cpp's mixture of types (deployctl.sizing.weights)"


class Variant(Entry):
    """One quantization of a model: its size in bytes, and where that figure comes from.

    ``bytes`` is the size of the weights file. ``tag`` is the registry's tag after the colon (None: made from the
    model's ``tag_pattern``). ``origin`` says who has the file: a registry, or a package of the sandbox extra.
    """

    bytes: int = Field(gt=0)
    tag: str | None = None
    origin: Literal["registry", "package"] = "registry"
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    estimated: bool = False
    source: str = ""

    @model_validator(mode="before")
    @classmethod
    def _sourced(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("source"):
            if not data.get("estimated"):
                raise ValueError("a size needs its source, or estimated: true")
            return {**data, "source": ESTIMATE}
        return data


class Mla(Entry):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed key/value per token and layer.

    ``key_length`` (with its rotary part) and ``value_length`` are those of a head before compression, ``q_lora_rank``
    the latent of the queries (None: they have none). Only sizes and speed depend on these three; memory does not.
    """

    kv_lora_rank: int = Field(gt=0)
    rope_length: int = Field(ge=0)
    q_lora_rank: int | None = Field(default=None, gt=0)
    key_length: int | None = Field(default=None, gt=0)
    value_length: int | None = Field(default=None, gt=0)


class ModelEntry(Entry):
    """One model. Lengths are elements per head, ``kv_heads`` a number or one per layer, ``context`` in tokens.

    ``sliding_window`` is in tokens; ``full_attention_every`` = n says that each n-th layer attends to everything and
    the others to the window only (1: all layers are full); ``windowed`` says it layer by layer instead, where no rule
    does, and ``window_key_length`` and ``window_value_length`` are the heads of those layers where they differ. A layer
    with 0 ``kv_heads`` keeps no cache: it borrows another's, or it is one of ``recurrent_layers``, each of which keeps
    ``state_elements`` numbers in f32 per slot. ``active_parameters`` are read per token (None: all). The first
    ``dense_layers`` of a mixture have one feed-forward of ``dense_feed_forward``; ``shared_experts`` are used by every
    token beside the picked ones.
    """

    name: str
    title: str
    architecture: str
    parameters: int = Field(gt=0)
    active_parameters: int | None = Field(default=None, gt=0)
    layers: int = Field(gt=0, le=4096)
    embedding: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int | tuple[int, ...]
    key_length: int = Field(gt=0)
    value_length: int = Field(gt=0)
    feed_forward: int | None = Field(default=None, gt=0)
    sliding_window: int | None = Field(default=None, gt=0)
    full_attention_every: int = Field(default=1, ge=1)
    windowed: tuple[bool, ...] | None = None
    window_key_length: int | None = Field(default=None, gt=0)
    window_value_length: int | None = Field(default=None, gt=0)
    recurrent_layers: int = Field(default=0, ge=0)
    state_elements: int = Field(default=0, ge=0)
    experts: int = Field(default=0, ge=0)
    experts_used: int = Field(default=0, ge=0)
    shared_experts: int = Field(default=0, ge=0)
    dense_layers: int = Field(default=0, ge=0)
    dense_feed_forward: int | None = Field(default=None, gt=0)
    mla: Mla | None = None
    vocabulary: int = Field(gt=0)
    context: int = Field(gt=0)
    tied_embeddings: bool = False
    projector_bytes: int = Field(default=0, ge=0)
    thinking: bool = False
    base: bool = False  # not tuned to follow instructions: no chat template to rely on
    forced_slots: int | None = Field(default=None, ge=1)  # families for which Ollama ignores OLLAMA_NUM_PARALLEL
    aliases: tuple[str, ...] = ()
    tag_pattern: str | None = None
    default: str
    variants: dict[str, Variant] = Field(min_length=1)
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> ModelEntry:
        per_layer = (self.kv_heads,) if isinstance(self.kv_heads, int) else self.kv_heads
        if isinstance(self.kv_heads, tuple) and len(self.kv_heads) != self.layers:
            raise ValueError(f"kv_heads lists {len(self.kv_heads)} layers, but the model has {self.layers}")
        if self.windowed is not None and len(self.windowed) != self.layers:
            raise ValueError(f"windowed lists {len(self.windowed)} layers, but the model has {self.layers}")
        if self.recurrent_layers > self.layers:
            raise ValueError("recurrent_layers is above layers")
        if any(not 0 <= count <= self.heads for count in per_layer):
            raise ValueError(f"kv_heads must lie between 0 and heads ({self.heads})")
        if self.default not in self.variants:
            raise ValueError(f"the default variant {self.default} is not among the variants")
        unknown = [key for key in self.variants if key not in QUALITY]
        if unknown:
            raise ValueError(f"unknown variant {unknown[0]} (known: {', '.join(QUALITY)})")
        if self.experts_used > self.experts:
            raise ValueError("experts_used is above experts")
        if self.active_parameters is not None and self.active_parameters > self.parameters:
            raise ValueError("active_parameters is above parameters")
        if self.tag_pattern is not None and "{variant}" not in self.tag_pattern:
            raise ValueError("tag_pattern must contain {variant}")
        return self

    @property
    def kv_heads_by_layer(self) -> tuple[int, ...]:
        """Key/value heads of each layer, first layer first."""
        return (self.kv_heads,) * self.layers if isinstance(self.kv_heads, int) else self.kv_heads

    @property
    def windowed_by_layer(self) -> tuple[bool, ...]:
        """Whether each layer keeps a sliding window only.

        The n-th layer of each group of n is the full one (llama.cpp: ``set_swa_pattern``, the last of each group).
        """
        if self.sliding_window is None:
            return (False,) * self.layers
        if self.windowed is not None:
            return self.windowed
        every = self.full_attention_every
        return tuple((layer + 1) % every != 0 for layer in range(self.layers))

    @property
    def family(self) -> str:
        """The reference before the colon: ``llama3.1`` of ``llama3.1:8b``."""
        return self.name.partition(":")[0]

    def reference(self, variant: str) -> str:
        """Return what to pull for ``variant``: the short name for the default one, else its own tag."""
        tag = self.variants[variant].tag
        if tag is not None:
            return f"{self.family}:{tag}"
        if variant == self.default or self.tag_pattern is None:
            return self.name
        return f"{self.family}:{self.tag_pattern.format(variant=variant)}"

    def variant_named(self, reference: str) -> str | None:
        """Return the variant that ``reference`` asks for by an explicit tag; None when it leaves the choice open."""
        wanted = reference.strip().lower()
        if wanted in self.names:
            return None
        for variant in self.variants:
            explicit = {self.reference(variant).lower()}
            if self.tag_pattern is not None:
                explicit.add(f"{self.family}:{self.tag_pattern.format(variant=variant)}".lower())
            if wanted in explicit:
                return variant
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """The references that mean this model without naming a variant, in lower case."""
        return (self.name.lower(), *(alias.lower() for alias in self.aliases))

    @property
    def references(self) -> tuple[str, ...]:
        """Every reference that resolves to this model."""
        explicit = [self.reference(variant) for variant in self.variants]
        if self.tag_pattern is not None:
            explicit += [f"{self.family}:{self.tag_pattern.format(variant=variant)}" for variant in self.variants]
        return tuple(dict.fromkeys((self.name, *self.aliases, *explicit)))


def quality(variant: str) -> int:
    """Return the rank of a variant, 0 the best; variants that nobody knows rank last."""
    return QUALITY.index(variant) if variant in QUALITY else len(QUALITY)
