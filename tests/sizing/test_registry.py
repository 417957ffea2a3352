import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deployctl.catalog.catalog import Catalog
from deployctl.errors import ModelUnavailable
from deployctl.sizing.facts import find, from_file
from deployctl.sizing.memo import Memo
from deployctl.sizing.registry import MANIFEST_TYPE, Name, Registry, RegistryUnreachable


class Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for the requests in flight


class Mirror:
    """A registry on a real socket: one model, Range requests, and a log of what was asked."""

    def __init__(self, weights: bytes, *, lie: int = 0, ranges: bool = True) -> None:
        config = json.dumps({"model_type": "0.1M", "file_type": "F16"}).encode()
        self.blobs = {f"sha256:{hashlib.sha256(blob).hexdigest()}": blob for blob in (weights, config)}
        digests = list(self.blobs)
        self.manifest: Any = {
            "config": {"mediaType": "application/json", "digest": digests[1], "size": len(config)},
            "layers": [
                {
                    "mediaType": "application/vnd.ollama.image.model",
                    "digest": digests[0],
                    "size": len(weights) + lie,
                }
            ],
        }
        self.asked: list[tuple[str, str | None, str | None]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers.get("Range"), self.headers.get("Accept")))
                if self.path == "/v2/library/tiny/manifests/1b":
                    self.answer(200, json.dumps(mirror.manifest).encode())
                elif (blob := mirror.blobs.get(self.path.rpartition("/")[2])) is not None:
                    found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if ranges else None
                    if found is None:
                        self.answer(200, blob)
                    else:
                        first, last = int(found[1]), min(int(found[2]), len(blob) - 1)
                        self.answer(206, blob[first : last + 1], f"bytes {first}-{last}/{len(blob)}")
                else:
                    self.answer(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')

            def answer(self, status: int, body: bytes, span: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if span:
                    self.send_header("Content-Range", span)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def weights(tmp_path: Path, write_gguf: Callable[..., Path]) -> bytes:
    return write_gguf(tmp_path / "tiny.gguf", tokens=3000).read_bytes()


@pytest.fixture
def mirror(weights: bytes) -> Iterator[Mirror]:
    running = Mirror(weights)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("llama3.1", (None, "library", "llama3.1", "latest")),
        ("llama3.1:8b", (None, "library", "llama3.1", "8b")),
        ("someone/model:q4", (None, "someone", "model", "q4")),
        ("mirror:5000/team/model:q4", ("mirror:5000", "team", "model", "q4")),
        ("hf.co/maker/model-GGUF:Q4_K_M", ("hf.co", "maker", "model-GGUF", "Q4_K_M")),
    ],
)
def test_a_reference_is_taken_apart(reference: str, parts: tuple[str | None, str, str, str]) -> None:
    name = Name.parse(reference)
    assert (name.registry, name.namespace, name.model, name.tag) == parts


@pytest.mark.parametrize("reference", ["", ":8b", "a b:c", "../../etc/passwd", "model:tag:tag", "mod?el:1"])
def test_what_is_no_reference_is_refused(reference: str) -> None:
    with pytest.raises(ModelUnavailable, match="not a model reference"):
        Name.parse(reference)


def test_facts_come_from_manifest_and_header_without_the_weights(mirror: Mirror, weights: bytes) -> None:
    entry = Registry(mirror.address).facts("tiny:1b")
    assert (entry.layers, entry.embedding, entry.vocabulary, entry.kv_heads) == (2, 64, 3000, (2, 1))
    assert entry.default == "fp16"
    variant = entry.variants["fp16"]
    assert variant.bytes == len(weights)
    assert variant.digest == f"sha256:{hashlib.sha256(weights).hexdigest()}"
    assert not variant.estimated
    assert mirror.address in entry.source
    assert mirror.asked[0][2] == MANIFEST_TYPE
    assert all(span is not None for path, span, _ in mirror.asked if variant.digest in path)


def test_a_tag_that_does_not_exist_is_named(mirror: Mirror) -> None:
    with pytest.raises(ModelUnavailable, match=r"has no model tiny:9b \(HTTP 404\)") as caught:
        Registry(mirror.address).facts("tiny:9b")
    assert caught.value.exit_code == 5


def test_a_registry_that_is_not_there_is_unreachable(mirror: Mirror) -> None:
    mirror.close()
    with pytest.raises(RegistryUnreachable, match="cannot be reached"):
        Registry(mirror.address, timeout=2).facts("tiny:1b")


@pytest.mark.parametrize("lie", [1, 1000, 10**9])
def test_a_manifest_that_lies_about_the_size_is_refused(weights: bytes, lie: int) -> None:
    mirror = Mirror(weights, lie=lie)
    try:
        with pytest.raises(ModelUnavailable, match=f"says {len(weights) + lie} bytes"):
            Registry(mirror.address).facts("tiny:1b")
    finally:
        mirror.close()


def test_a_lie_that_no_content_range_betrays_is_found_by_the_shapes(weights: bytes) -> None:
    mirror = Mirror(weights, lie=10**9, ranges=False)
    try:
        with pytest.raises(ModelUnavailable, match="needs about"):
            Registry(mirror.address).facts("tiny:1b")
    finally:
        mirror.close()


@pytest.mark.parametrize(
    "manifest",
    [
        [], {}, {"layers": [], "config": {}}, {"layers": 3, "config": 4},
        {"layers": [{"mediaType": "x", "digest": "sha256:0", "size": 1}], "config": {}},
    ],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_refused(mirror: Mirror, manifest: Any) -> None:
    mirror.manifest = manifest
    with pytest.raises(ModelUnavailable, match="tiny:1b: the registry's manifest"):
        Registry(mirror.address).facts("tiny:1b")


@pytest.mark.parametrize("address", ["registry.ollama.ai", "ftp://mirror", "http://", "file:///etc/passwd"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ModelUnavailable, match="not the address of a registry"):
        Registry(address)


def test_the_host_is_asked_before_the_registry(mirror: Mirror, catalog: Catalog) -> None:
    answer = {
        "details": {"quantization_level": "Q8_0"},
        "model_info": {
            "general.architecture": "llama", "general.parameter_count": 10**6, "llama.block_count": 3,
            "llama.embedding_length": 64, "llama.attention.head_count": 4, "llama.context_length": 2048,
            "llama.vocab_size": 1000,
        },
    }  # fmt: skip
    found = find("tiny:1b", catalog, show=lambda _: answer, registry=Registry(mirror.address))
    assert (found.origin, found.model.layers, found.model.default) == ("host", 3, "q8_0")
    assert not mirror.asked
    assert find("tiny:1b", catalog, show=lambda _: None, registry=Registry(mirror.address)).origin == "registry"


def test_an_answer_is_remembered_for_the_offline_mode(mirror: Mirror, catalog: Catalog, tmp_path: Path) -> None:
    memo = Memo(tmp_path, mirror.address)
    first = find("tiny:1b", catalog, registry=Registry(mirror.address), memo=memo)
    mirror.close()
    again = find("tiny:1b", catalog, memo=memo)
    assert again.origin == "cache"
    assert again.model == first.model
    with pytest.raises(ModelUnavailable):
        find("tiny:1b", catalog, memo=Memo(tmp_path, "https://elsewhere"))


def test_a_fresh_answer_spares_the_question_and_an_old_one_serves_where_the_registry_cannot(
    mirror: Mirror, catalog: Catalog, tmp_path: Path
) -> None:
    memo, registry = Memo(tmp_path, mirror.address), Registry(mirror.address, timeout=2)
    find("tiny:1b", catalog, registry=registry, memo=memo)
    asked = len(mirror.asked)
    assert find("tiny:1b", catalog, registry=registry, memo=memo).origin == "cache"
    assert len(mirror.asked) == asked
    (kept,) = (tmp_path / "facts").iterdir()
    os.utime(kept, (1, 1))
    assert find("tiny:1b", catalog, registry=registry, memo=memo).origin == "registry"
    os.utime(kept, (1, 1))
    mirror.close()
    found = find("tiny:1b", catalog, registry=registry, memo=memo)
    assert found.origin == "cache"
    assert "cannot be reached" in found.notes[0]


def test_an_unreachable_registry_falls_back_to_the_catalogue_and_says_so(mirror: Mirror, catalog: Catalog) -> None:
    mirror.close()
    found = find("llama3.1:8b", catalog, registry=Registry(mirror.address, timeout=2))
    assert found.origin == "catalogue"
    assert "cannot be reached" in found.notes[0]


def test_a_model_that_nobody_knows_is_named_with_the_nearest(mirror: Mirror, catalog: Catalog) -> None:
    with pytest.raises(ModelUnavailable, match=r"no model nope:1b; nearest: .*has no model nope:1b \(HTTP 404\)"):
        find("nope:1b", catalog, registry=Registry(mirror.address))


def test_a_local_file_gives_its_own_facts(weights: bytes, catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    entry = from_file(path, "tiny:1b")
    assert entry.variants["fp16"].bytes + entry.projector_bytes == len(weights)
    assert entry.projector_bytes == 8 * 64 * 2
    assert find("tiny:1b", catalog, gguf=path).origin == "file"
