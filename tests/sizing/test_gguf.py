import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployctl.errors import ModelUnavailable
from deployctl.sizing.gguf import MOST_KEYS, Header, read_file, read_header

gguf = pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., Path]) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


def of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length]


def refused(data: bytes) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        read_header(of(data), name="odd", size=len(data))
    return caught.value.message


def start(keys: int, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def test_what_the_gguf_package_wrote_is_read_back(small: Path) -> None:
    header = read_file(small)
    assert header.values["general.architecture"] == "llama"
    assert header.values["llama.block_count"] == 2
    assert header.values["llama.attention.head_count_kv"] == [2, 1]
    assert header.lengths["tokenizer.ggml.tokens"] == 300
    assert header.complete
    # Two tables; in both layers q, o (64 x 64) and three of 64 x 128; k and v of 2 + 1 heads of 16; one norm.
    matrices = 2 * 300 * 64 + 2 * (2 * 64 * 64 + 3 * 64 * 128) + 2 * 3 * 16 * 64
    assert header.elements == matrices + 64
    assert header.vision_bytes == 8 * 64 * 2
    assert header.tensor_bytes == matrices * 2 + 64 * 4 + 8 * 64 * 2


def test_data_offset_and_tensors_agree_with_the_gguf_package(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    header = read_file(small)
    assert header.data_offset == reader.data_offset
    assert header.tensor_bytes == sum(tensor.n_bytes for tensor in reader.tensors)


def test_the_facts_alone_need_only_the_beginning(small: Path) -> None:
    asked: list[tuple[int, int]] = []
    data = small.read_bytes()

    def source(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return data[offset : offset + length]

    header = read_header(source, name="small", facts_only=True)
    assert header.lengths == {"tokenizer.ggml.tokens": 300}
    assert not header.complete
    assert len(asked) == 1


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    from deployctl.sizing.gguf import BLOCKS

    for kind, (numbers, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.value in BLOCKS:
            assert BLOCKS[kind.value] == (numbers, size), kind


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it ends after 0 bytes"),
        (b"GGML" + bytes(100), "does not begin with GGUF"),
        (start(0, version=9), "version 9 is not supported"),
        (start(1_000_000), f"announces 1000000 keys; {MOST_KEYS} is the limit"),
        (start(0, tensors=1 << 60), "tensors"),
        (start(1) + struct.pack("<Q", 1 << 62), "a text of 4611686018427387904 bytes"),
        (start(1) + key("a", 8, struct.pack("<Q", 1 << 63)), "a text of 9223372036854775808 bytes"),
        (start(1) + key("a", 9, struct.pack("<IQ", 4, 1 << 62)), "entries"),
        (start(1) + key("a", 9, struct.pack("<IQ", 9, 1)), "a list of the value type 9"),
        (start(1) + key("a", 77, b""), "unknown value type 77"),
        (start(2) + key("a", 4, bytes(4)) + key("a", 4, bytes(4)), "'a' comes twice"),
        (start(2) + key("a", 4, bytes(4)), "it ends after"),
    ],
)
def test_a_hostile_or_truncated_header_is_refused_and_says_why(data: bytes, said: str) -> None:
    assert said in refused(data)


def test_tensors_larger_than_the_file_are_a_lie(small: Path) -> None:
    data = small.read_bytes()
    with pytest.raises(ModelUnavailable, match="truncated, or a lie"):
        read_header(of(data), name="small", size=len(data) - 4096)


def test_a_tensor_of_overflowing_shape_is_refused() -> None:
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<I", 4) + struct.pack("<4Q", *([1 << 62] * 4))
    assert "truncated, or a lie" in refused(start(0, tensors=1) + tensor + struct.pack("<IQ", 0, 0))


def test_a_million_strings_that_are_not_there_cost_little_memory() -> None:
    data = start(1) + key("tokens", 9, struct.pack("<IQ", 8, 999_999)) + bytes(1000)
    tracemalloc.start()
    try:
        assert "it ends after" in refused(data)
        assert tracemalloc.get_traced_memory()[1] < 20 * 1024**2
    finally:
        tracemalloc.stop()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2000), value=st.integers(0, 255), cut=st.integers(0, 60000))
def test_any_flipped_byte_or_cut_is_read_or_refused_and_nothing_else(
    small: Path, at: int, value: int, cut: int
) -> None:
    data = bytearray(small.read_bytes())
    data[at % len(data)] = value
    try:
        assert isinstance(read_header(of(bytes(data[: len(data) - cut])), name="odd", size=len(data) - cut), Header)
    except ModelUnavailable as error:
        assert error.message.startswith("odd: not a sound GGUF header")  # noqa: PT017 - either outcome is sound
