"""A hostile header is refused within a second and 200 MB: by a process of its own, whose limits the kernel keeps."""

import json
import struct
import subprocess
import sys
from pathlib import Path

LIMITED = """
import json, resource, sys
from pathlib import Path
from deployctl.errors import ModelUnavailable
from deployctl.sizing.facts import from_file
resource.setrlimit(resource.RLIMIT_DATA, (200_000_000, 200_000_000))
for name in sys.argv[1:]:
    began = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    try:
        said = str(from_file(Path(name)).name)
    except ModelUnavailable as error:
        said = "refused: " + error.message
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - began
    print(json.dumps([spent, said]), flush=True)
"""


def start(keys: int, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys)


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def text(length: int) -> bytes:
    return struct.pack("<Q", length) + b"x" * length


HOSTILE = {
    "a million keys": start(1_000_000) + b"".join(key(f"k{i:06}", 4, bytes(4)) for i in range(1_000_000)),
    "a million tensors": start(0, 1_000_000) + bytes(32_000_000),
    "a text longer than the file": start(1) + key("general.name", 8, struct.pack("<Q", 1 << 62)),
    "a list that overflows": start(1) + key("a", 9, struct.pack("<IQ", 10, (1 << 61) + 1)),
    "lists without end": start(4096)
    + b"".join(key(f"k{i}", 9, struct.pack("<IQ", 0, 3_000_000) + bytes(3_000_000)) for i in range(20)),
    "a million empty texts, thrice": start(3)
    + b"".join(key(f"k{i}", 9, struct.pack("<IQ", 8, 1_000_000) + bytes(8_000_000)) for i in range(3)),
    "texts of four megabytes": start(4096) + b"".join(key(f"k{i}", 8, text(4_000_000)) for i in range(20)),
    "cut in the middle of a value": (start(2) + key("general.architecture", 8, text(5)))[:-3],
    "a shape whose product overflows": start(0, 1) + text(1) + struct.pack("<I4QIQ", 4, *([(1 << 63) - 1] * 4), 0, 0),
    "lists within lists": start(1) + key("a", 9, struct.pack("<IQ", 9, 1 << 40) * 1000),
    "an absurd model": start(2) + key("general.architecture", 8, text(5)) + key("xxxxx.block_count", 4, b"\xff" * 4),
}


def test_each_is_refused_within_a_second_and_200_mb(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.gguf" for number in range(len(HOSTILE))]
    for path, data in zip(files, HOSTILE.values(), strict=True):
        path.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, files)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for kind, (spent, said) in zip(HOSTILE, answers, strict=True):
        assert said.startswith("refused: "), kind
        assert spent < 1.0, kind  # CPU time, which a busy machine does not stretch
