"""Reads the header of a GGUF file, local or remote, without trusting a byte of it.

The layout is ggml's docs/gguf.md, versions 2 and 3, little endian. The gguf package maps whole files and follows every
count that it finds; this reader takes bytes from any source, skips what it does not need and stops at its limits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployctl.errors import ModelUnavailable

Source = Callable[[int, int], bytes]
"""Returns up to ``length`` bytes from ``offset``; fewer only at the end."""

BLOCK = 256 * 1024
MOST_HEADER = 64 * 1024**2  # the largest known, with 256k tokens and their merges, is below 16 MiB
MOST_KEYS = 4096
MOST_TENSORS = 65536
MOST_NAME = 1024
MOST_TEXT = 4 * 1024**2  # chat templates and licences
MOST_KEPT = 4096  # entries of a list of numbers that is kept (one per layer)
MOST_ENTRIES = 4_000_000  # of all lists; numbers are skipped at once
MOST_TEXTS = 1_000_000  # of all lists; Gemma 4's tokens and merges are 780,000

# Value types (docs/gguf.md, gguf_metadata_value_type) and their struct formats.
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# Tensor types (ggml.h, ggml_type): numbers per block, bytes per block.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip
VISION = ("v.", "mm.", "mmproj.", "vision", "a.")


@dataclass(frozen=True)
class Header:
    """What the header says: ``values`` by key, ``lengths`` of the lists that were not kept.

    With ``complete`` the tensors were read too: ``elements`` of the language model, bytes of all tensors and of those
    of a vision tower, and where the data starts. Else reading stopped at the tokenizer, and they are 0.
    """

    version: int
    values: Mapping[str, Any]
    lengths: Mapping[str, int]
    complete: bool = False
    elements: int = 0
    tensor_bytes: int = 0
    vision_bytes: int = 0
    data_offset: int = 0


def read_file(path: Path) -> Header:
    """Read the whole header of a local file. Raises ModelUnavailable for what is no sound GGUF, or truncated."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:

            def source(offset: int, length: int) -> bytes:
                handle.seek(offset)
                return handle.read(length)

            return read_header(source, name=str(path), size=size)
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read: {error.strerror or error}") from error


def read_header(source: Source, *, name: str, size: int | None = None, facts_only: bool = False) -> Header:
    """Read a header through ``source``; ``size`` is the file's, where it is known, and is checked against the tensors.

    ``facts_only`` stops once the tokenizer's size is known: a few hundred kilobytes instead of many megabytes. Raises
    ModelUnavailable naming ``name`` for a truncated, inconsistent or oversized header.
    """
    cursor = _Cursor(source, name)
    if cursor.take(4) != b"GGUF":
        raise cursor.error("it does not begin with GGUF")
    version = cursor.number("I")
    if version not in (2, 3):
        raise cursor.error(f"version {version} is not supported")
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    if keys > MOST_KEYS:
        raise cursor.error(f"it announces {keys} keys; {MOST_KEYS} is the limit")
    if tensors > MOST_TENSORS:
        raise cursor.error(f"it announces {tensors} tensors; {MOST_TENSORS} is the limit")
    values: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(keys):
        key = cursor.text(MOST_NAME)
        kind = cursor.number("I")
        if facts_only and key == "tokenizer.ggml.tokens" and kind == ARRAY:
            cursor.number("I")
            lengths[key] = cursor.number("Q")
            return Header(version, values, lengths)
        if key in values or key in lengths:
            raise cursor.error(f"the key {key!r} comes twice")
        kept = cursor.value(kind)
        if isinstance(kept, _Skipped):
            lengths[key] = kept.length
        else:
            values[key] = kept
    return _with_tensors(cursor, Header(version, values, lengths), tensors, size)


def model_info(header: Header) -> dict[str, Any]:
    """Return the facts in the form of /api/show's ``model_info``, for `deployctl.sizing.show.from_show`."""
    info = dict(header.values)
    architecture = info.get("general.architecture")
    if isinstance(architecture, str) and "tokenizer.ggml.tokens" in header.lengths:
        info.setdefault(f"{architecture}.vocab_size", header.lengths["tokenizer.ggml.tokens"])
    if header.complete:
        info.setdefault("general.parameter_count", header.elements)
    return info


def _with_tensors(cursor: _Cursor, header: Header, tensors: int, size: int | None) -> Header:
    elements = total = vision = 0
    end = 0
    for _ in range(tensors):
        tensor = cursor.text(MOST_NAME)
        dimensions = cursor.number("I")
        if dimensions > 8:
            raise cursor.error(f"tensor {tensor!r} has {dimensions} dimensions")
        count = math.prod(cursor.number("Q") for _ in range(dimensions))
        kind, offset = cursor.number("I"), cursor.number("Q")
        if kind not in BLOCKS:
            raise cursor.error(f"tensor {tensor!r} is of the unknown type {kind}")
        numbers, block = BLOCKS[kind]
        length = -(-count // numbers) * block
        end = max(end, offset + length)
        total += length
        if tensor.startswith(VISION):
            vision += length
        else:
            elements += count
    alignment = header.values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise cursor.error(f"an alignment of {alignment!r}")
    start = -(-cursor.offset // alignment) * alignment
    if size is not None and start + end > size:
        raise cursor.error(f"its tensors need {start + end} bytes, but the file has {size}: truncated, or a lie")
    return Header(header.version, header.values, header.lengths, True, elements, total, vision, start)


@dataclass(frozen=True)
class _Skipped:
    length: int


@dataclass
class _Cursor:
    """Walks through the source block by block; nothing longer than a block and one value is held."""

    source: Source
    name: str
    offset: int = 0
    _buffer: bytes = b""
    _start: int = 0
    _entries: int = 0
    _texts: int = 0

    def error(self, what: str) -> ModelUnavailable:
        return ModelUnavailable(f"{self.name}: not a sound GGUF header: {what}", hint="download the model again")

    def take(self, length: int) -> bytes:
        if self.offset + length > MOST_HEADER:
            raise self.error(f"it is longer than {MOST_HEADER} bytes")
        inside = self.offset - self._start
        if inside + length > len(self._buffer):
            rest = self._buffer[inside:]  # empty where a skipped text ended beyond the buffer
            self._start = self.offset
            self._buffer = rest + self.source(self.offset + len(rest), max(BLOCK, length) - len(rest))
            inside = 0
            if len(self._buffer) < length:
                raise self.error(f"it ends after {self.offset + len(self._buffer)} bytes")
        self.offset += length
        return self._buffer[inside : inside + length]

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def text(self, most: int) -> str:
        length = self.number("Q")
        if length > most:
            raise self.error(f"a text of {length} bytes at byte {self.offset}")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text(MOST_TEXT)
        if kind == ARRAY:
            return self._array()
        if kind not in FORMATS:
            raise self.error(f"the unknown value type {kind} at byte {self.offset}")
        return self.number(FORMATS[kind])

    def _array(self) -> Any:
        kind, length = self.number("I"), self.number("Q")
        self._entries += length
        if self._entries > MOST_ENTRIES:
            raise self.error(f"lists of more than {MOST_ENTRIES} entries")
        if kind == STRING:
            self._texts += length
            if self._texts > MOST_TEXTS:
                raise self.error(f"lists of more than {MOST_TEXTS} texts")
            self._skip_texts(length)
            return _Skipped(length)
        if kind not in FORMATS:
            raise self.error(f"a list of the value type {kind} at byte {self.offset}")
        raw = self.take(length * struct.calcsize("<" + FORMATS[kind]))
        if length > MOST_KEPT:
            return _Skipped(length)
        return list(struct.unpack(f"<{length}{FORMATS[kind]}", raw))

    def _skip_texts(self, count: int) -> None:
        unpack = struct.Struct("<Q").unpack_from
        while count:
            self.take(8)  # brings the next length into the buffer
            buffer, place = self._buffer, self.offset - 8 - self._start
            while count and place + 8 <= len(buffer):
                (length,) = unpack(buffer, place)
                if length > MOST_TEXT:
                    raise self.error(f"a text of {length} bytes at byte {self._start + place}")
                place += 8 + length
                count -= 1
            self.offset = self._start + place
            if self.offset > MOST_HEADER:
                raise self.error(f"it is longer than {MOST_HEADER} bytes")
