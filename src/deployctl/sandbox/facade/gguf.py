"""The header of a GGUF file: the metadata, without the vocabulary, and the number of parameters."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any

# Value types of the GGUF specification (ggml, docs/gguf.md): number → struct format; 8 is string, 9 is array.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LONGEST_ARRAY = 256  # per-layer lists are kept, vocabularies are skipped

# general.file_type → the name that Ollama shows.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """Metadata (``general.architecture``, …; long arrays left out), parameter count and text of the BOS token."""

    metadata: dict[str, Any]
    parameters: int
    bos: str

    @property
    def architecture(self) -> str:
        """The model family, for instance ``gemma3``."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def file_type(self) -> str:
        """The quantization as Ollama names it."""
        return FILE_TYPES.get(int(self.metadata.get("general.file_type", -1)), "unknown")

    @property
    def training_context(self) -> int:
        """Tokens that the model was trained on; 0 when the file does not say."""
        return int(self.metadata.get(f"{self.architecture}.context_length", 0))

    @property
    def chat_template(self) -> str:
        """The Jinja template in the file; empty for a base model."""
        return str(self.metadata.get("tokenizer.chat_template", ""))


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0
        self.tokens_at: int | None = None

    def scalar(self, fmt: str) -> Any:
        (value,) = struct.unpack_from(fmt, self.data, self.at)
        self.at += struct.calcsize(fmt)
        return value

    def string(self) -> str:
        size = self.scalar("<Q")
        text = self.data[self.at : self.at + size].decode("utf-8", "replace")
        self.at += size
        return text

    def skip_strings(self, count: int) -> None:
        unpack, data, at = struct.Struct("<Q").unpack_from, self.data, self.at
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self.at = at

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        inner, count = self.scalar("<I"), self.scalar("<Q")
        if key == "tokenizer.ggml.tokens":
            self.tokens_at = self.at
        if count <= _LONGEST_ARRAY:
            return [self.value(inner, "") for _ in range(count)]
        if inner == _STRING:
            self.skip_strings(count)
        else:
            self.at += count * struct.calcsize(_SCALARS[inner])
        return None


def read_header(path: str) -> Header:
    """Read the header of a GGUF file, version 2 or 3. Raises ValueError when it is no such file."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError("invalid file magic")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(_Reader(data))
            except (struct.error, KeyError, IndexError) as error:
                raise ValueError(f"damaged GGUF header: {error}") from error


def _read(reader: _Reader) -> Header:
    reader.at = 4
    version = reader.scalar("<I")
    if version not in (2, 3):
        raise ValueError(f"unsupported GGUF version {version}")
    tensors, pairs = reader.scalar("<Q"), reader.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = reader.string()
        value = reader.value(reader.scalar("<I"), key)
        if value is not None:
            metadata[key] = value
    parameters = 0
    for _ in range(tensors):
        reader.string()
        size = 1
        for _ in range(reader.scalar("<I")):
            size *= reader.scalar("<Q")
        reader.at += 12  # type and offset
        parameters += size
    bos = ""
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    if reader.tokens_at is not None and isinstance(bos_id, int):
        reader.at = reader.tokens_at
        reader.skip_strings(bos_id)
        bos = reader.string()
    return Header(metadata, parameters, bos)
