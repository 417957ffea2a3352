"""The shipped catalogue, and a GGUF file made by another program than ours."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.catalog.load import load_catalog
from deployctl.resources import Project


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(Project(Path("/nonexistent")))


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """Return a function that writes a small model with the gguf package."""
    gguf = pytest.importorskip("gguf")

    def write(path: Path, *, tokens: int = 300) -> Path:
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(2)
        writer.add_context_length(4096)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(128)
        writer.add_head_count(4)
        writer.add_head_count_kv([2, 1])
        writer.add_file_type(1)
        writer.add_token_list([f"token {i}" for i in range(tokens)])
        writer.add_token_scores([0.5] * tokens)
        shapes = {"token_embd": (tokens, 64), "output": (tokens, 64)}
        for layer, kv_heads in enumerate((2, 1)):
            kinds = {"attn_q": (64, 64), "attn_k": (16 * kv_heads, 64), "attn_v": (16 * kv_heads, 64)}
            kinds |= {"attn_output": (64, 64), "ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}
            shapes |= {f"blk.{layer}.{kind}": shape for kind, shape in kinds.items()}
        for name, shape in shapes.items():
            writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float16))
        writer.add_tensor("output_norm.weight", np.zeros(64, dtype=np.float32))
        writer.add_tensor("v.patch_embd.weight", np.zeros((8, 64), dtype=np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
