"""Memory of a deployment, part by part: weights, KV cache, compute buffers, prompt cache, runtime and OS reserve.

The formulas are llama.cpp's own allocations, which Ollama 0.30 and later run in a child process; the shared design note
on Ollama ("Memory") and the logs quoted in tests/sizing are the sources.
"""

from __future__ import annotations

from deployctl.catalog.models import ModelEntry
from deployctl.sizing.fit import Capacity, KvType, Parts
from deployctl.sizing.weights import table_bytes

MIB = 1024**2
GIB = 1024**3

UBATCH = 512
"""Tokens that llama.cpp computes at once (``-ub``); Ollama leaves the default."""

KV_BYTES: dict[KvType, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes per element: a block of 32 is 2 bytes of scale and 32 or 16 bytes of numbers (ggml-common.h)."""

CELLS = 256
"""llama.cpp pads the cells of a cache to a multiple of this."""

CPU_RUNTIME = 128 * MIB
"""The ollama and llama-server processes without the parts counted elsewhere: measured 70 to 180 MiB, by what was asked
before; with the embedded engine 100 to 134 MiB (benchmarks/sizing.py). The system's reserve bears the difference."""

GPU_CONTEXT = 457 * MIB
"""Device memory of a CUDA context with its libraries, per GPU."""

GPU_MARGIN = GIB
"""What llama.cpp's ``--fit`` leaves free on each GPU."""

CPU_ENGINE_DISK, GPU_ENGINE_DISK = GIB, 6 * GIB
"""Disk for Ollama; on a GPU host with its CUDA libraries, and with the archive while it is unpacked."""


def kv_bytes(
    model: ModelEntry,
    context: int,
    slots: int,
    kv_type: KvType = "f16",
    *,
    ubatch: int = UBATCH,
    layers: int | None = None,
) -> int:
    """Return the bytes of the KV cache: ``context`` tokens in each of ``slots`` slots.

    A full layer keeps every token of a slot; a sliding-window layer the window and one batch, per slot, because slots
    own their cells (the cache is not unified). A recurrent layer keeps its state, one per slot, in f32 whatever the
    type of the cache (llama.cpp, llama-memory-recurrent.cpp). ``layers`` restricts the sum to the last so many layers,
    those that a GPU holds first.
    """
    first = 0 if layers is None else model.layers - min(layers, model.layers)
    full, window = padded(context), _window_cells(model, context, ubatch)
    elements = sum(
        (window if windowed else full) * per_token
        for windowed, per_token in list(zip(model.windowed_by_layer, elements_by_layer(model), strict=True))[first:]
    )
    # Rounded up to a whole block per row in llama.cpp; head lengths are multiples of 32 in every known model.
    states = model.recurrent_layers * (model.layers - first) // model.layers * model.state_elements * 4
    return round(elements * slots * KV_BYTES[kv_type]) + states * slots


def _window_cells(model: ModelEntry, context: int, ubatch: int) -> int:
    """Return the cells of one slot in a sliding-window layer (llama.cpp, src/llama-kv-cache-iswa.cpp)."""
    return min(padded(context), padded((model.sliding_window or 0) + ubatch))


def elements_by_layer(model: ModelEntry) -> tuple[int, ...]:
    """Return the elements that one token adds to each layer's cache.

    With multi-head latent attention it is one latent and its rotary part, whatever the number of heads, and the values
    are read from the same latent (DeepSeek-V2, arXiv:2405.04434, section 2.1.2).
    """
    if model.mla is not None:
        return (model.mla.kv_lora_rank + model.mla.rope_length,) * model.layers
    full = model.key_length + model.value_length
    window = (model.window_key_length or model.key_length) + (model.window_value_length or model.value_length)
    return tuple(
        (window if windowed else full) * heads
        for windowed, heads in zip(model.windowed_by_layer, model.kv_heads_by_layer, strict=True)
    )


def input_table_bytes(model: ModelEntry, variant: str) -> int:
    """Return the bytes of an input embedding of its own, which llama.cpp keeps in main memory; 0 where it is tied.

    A tied one is the output as well: it goes to the GPU with the output layer, and is mapped in main memory besides.
    """
    if model.tied_embeddings:
        return 0
    return table_bytes(model, variant)


def compute_bytes(model: ModelEntry, ubatch: int = UBATCH, *, context: int = 0, last_logits: bool = False) -> int:
    """Return the bytes of the compute buffers with flash attention: f32 activations of one batch of ``ubatch`` tokens.

    Ollama's llama.cpp reserves logits for each token of the batch, which outweighs all else. Newer builds, the embedded
    engine's among them (``n_outputs_max`` in its log), reserve them for each slot's last token only: then three feed-
    forward rows and five of the embedding remain, and the masks of ``context`` tokens in f16 (fitted to five of its
    buffer sizes within 0.2 %).
    """
    if not last_logits:
        return 4 * ubatch * (model.embedding + model.vocabulary)
    feed_forward = (model.feed_forward or 4 * model.embedding) * max(1, model.experts_used)
    masks = padded(context) + (_window_cells(model, context, ubatch) if model.sliding_window else 0)
    return ubatch * (4 * (3 * feed_forward + 5 * model.embedding) + 2 * masks)


def os_reserve(ram_bytes: int) -> int:
    """Return the main memory left to the system: 512 MiB for a minimal Debian with sshd and journald, and 3 %.

    The share covers what a machine sold as 32 GB does not show as MemTotal (page tables, firmware: 1.6 to 2.5 %).
    """
    return 512 * MIB + round(0.03 * ram_bytes)


def cpu_parts(
    model: ModelEntry,
    variant: str,
    capacity: Capacity,
    *,
    context: int,
    slots: int,
    kv_type: KvType = "f16",
    prompt_cache: int = 0,
    last_logits: bool = False,
) -> Parts:
    """Return the parts in main memory; nothing is on a GPU. Weights are anonymous memory there (no mmap)."""
    return Parts(
        weights=model.variants[variant].bytes + model.projector_bytes,
        kv=kv_bytes(model, context, slots, kv_type),
        compute=compute_bytes(model, context=context, last_logits=last_logits),
        prompt_cache=prompt_cache,
        runtime=CPU_RUNTIME,
        os_reserve=os_reserve(capacity.ram_bytes),
        available=capacity.ram_bytes,
    )


def gpu_parts(
    model: ModelEntry,
    variant: str,
    capacity: Capacity,
    *,
    context: int,
    slots: int,
    kv_type: KvType = "f16",
    last_logits: bool = False,
) -> Parts:
    """Return the parts in video memory with every layer on the GPUs of ``capacity``; the prompt cache is elsewhere.

    The input embedding stays in main memory (llama.cpp, llama-model.cpp, ``dev_input``). Each GPU has its own compute
    buffer, context and margin. Layers are not divided, so each further GPU may leave a layer's worth unused: that is
    counted as runtime.
    """
    gpus = max(1, capacity.gpus)
    weights = model.variants[variant].bytes - input_table_bytes(model, variant) + model.projector_bytes
    kv = kv_bytes(model, context, slots, kv_type)
    unused = (gpus - 1) * round((weights + kv) / (model.layers + 1))
    return Parts(
        weights=weights,
        kv=kv,
        compute=compute_bytes(model, context=context, last_logits=last_logits) * gpus,
        prompt_cache=0,
        runtime=GPU_CONTEXT * gpus + unused,
        os_reserve=GPU_MARGIN * gpus,
        available=sum(capacity.vram_bytes),
    )


def split_parts(
    model: ModelEntry,
    variant: str,
    capacity: Capacity,
    *,
    context: int,
    slots: int,
    kv_type: KvType = "f16",
    prompt_cache: int = 0,
    last_logits: bool = False,
) -> tuple[Parts, int]:
    """Return the parts over both memories, and the number of layers that the GPUs hold (0 to ``layers``).

    The last layers go to the GPU, each with its share of the weights and its own KV cache; the rest, the input
    embedding and the output stay in main memory. The fit fails when ``total`` exceeds ``available``, which counts only
    as much video memory as is used.
    """
    weights = model.variants[variant].bytes + model.projector_bytes
    compute = compute_bytes(model, context=context, last_logits=last_logits)
    fixed = (compute + GPU_CONTEXT + GPU_MARGIN) * capacity.gpus
    room = sum(capacity.vram_bytes) - fixed
    layer_weights = weights / (model.layers + 1)
    on_gpu = 0
    while on_gpu < model.layers:
        more = on_gpu + 1
        if layer_weights * more + kv_bytes(model, context, slots, kv_type, layers=more) > room:
            break
        on_gpu = more
    used = 0
    if on_gpu:
        used = fixed + round(layer_weights * on_gpu) + kv_bytes(model, context, slots, kv_type, layers=on_gpu)
    gpus = capacity.gpus if on_gpu else 0
    parts = Parts(
        weights=weights,
        kv=kv_bytes(model, context, slots, kv_type),
        compute=compute * (gpus + 1),
        prompt_cache=prompt_cache,
        runtime=CPU_RUNTIME + GPU_CONTEXT * gpus,
        os_reserve=os_reserve(capacity.ram_bytes) + GPU_MARGIN * gpus,
        available=capacity.ram_bytes + used,
    )
    return parts, on_gpu


def host_bytes_beside_gpu(model: ModelEntry, variant: str, capacity: Capacity, prompt_cache: int) -> int:
    """Return the main memory beside a model on GPUs: processes, input embedding, prompt cache and the system."""
    table = table_bytes(model, variant)
    return CPU_RUNTIME + table + prompt_cache + os_reserve(capacity.ram_bytes)


def disk_bytes(model: ModelEntry, variant: str, capacity: Capacity) -> int:
    """Return the free disk that a deployment needs: the weights, 5 % for the rest of the model, and Ollama itself."""
    weights = model.variants[variant].bytes + model.projector_bytes
    return round(weights * 1.05) + (GPU_ENGINE_DISK if capacity.gpus else CPU_ENGINE_DISK)


def disk_suffices(model: ModelEntry, variant: str, capacity: Capacity) -> bool:
    """Say whether the free disk holds the deployment; a disk that is not known does."""
    return capacity.disk_bytes is None or disk_bytes(model, variant, capacity) <= capacity.disk_bytes


def padded(tokens: int) -> int:
    """Round up to whole groups of cells."""
    return -(-tokens // CELLS) * CELLS
