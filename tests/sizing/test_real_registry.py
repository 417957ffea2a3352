"""Facts from a registry that others wrote: Debian's docker-registry, filled in Ollama's layout over its own API."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nspawn.registry import Store, running_registry

from deployctl.catalog.load import load_catalog
from deployctl.cli.app import main
from deployctl.errors import ModelUnavailable
from deployctl.resources import Project
from deployctl.sizing.facts import find
from deployctl.sizing.registry import Registry

pytestmark = pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, write_gguf: Callable[..., Path]) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tokens=30_000).read_bytes()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose catalogue lists the pushed model with three variants of estimated size."""
    home = tmp_path_factory.mktemp("project")
    (home / "inventory").mkdir()
    entry = {
        "title": "Tiny", "architecture": "llama", "parameters": 10**7, "layers": 2, "embedding": 64, "heads": 4,
        "kv_heads": [2, 1], "key_length": 16, "value_length": 16, "feed_forward": 128, "vocabulary": 30_000,
        "context": 4096, "tag_pattern": "1b-{variant}", "default": "fp16", "source": "by hand",
        "variants": {name: {"bytes": 10**6, "estimated": True} for name in ("fp16", "q8_0", "q4_0")},
    }  # fmt: skip
    (home / "inventory" / "models.yml").write_text(json.dumps({"tiny:1b": entry}))
    return Project(home)


def test_exact_bytes_come_from_manifests_and_the_header_by_range(store: Store, weights: bytes, known: Project) -> None:
    digest = store.push("library/tiny", "1b", weights, file_type="F16", projector=bytes(5000))
    store.push("library/tiny", "1b-fp16", weights, file_type="F16")
    store.push("library/tiny", "1b-q8_0", weights[: len(weights) // 2], file_type="Q8_0")
    found = find("tiny:1b", load_catalog(known), registry=Registry(store.address))
    assert found.origin == "registry"
    sizes = {name: (variant.bytes, variant.estimated) for name, variant in found.model.variants.items()}
    # The registry has no tag 1b-q4_0: what cannot be pulled is not offered.
    assert sizes == {"fp16": (len(weights), False), "q8_0": (len(weights) // 2, False)}
    assert found.model.variants["fp16"].digest == digest
    assert found.model.projector_bytes == 5000
    assert found.model.kv_heads == (2, 1)
    assert store.address in found.model.source


def test_a_model_that_no_catalogue_lists_is_sized_by_the_command_line_and_then_offline(
    store: Store, weights: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.push("team/odd", "v2", weights, file_type="F16")
    monkeypatch.setenv("DEPLOYCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEPLOYCTL_OFFLINE", raising=False)
    words = ["advise", "--plan", "cpu-8gb", "--model", "team/odd:v2", "--registry", store.address, "--json"]
    words += ["--data-dir", str(tmp_path)]

    def answer(*more: str) -> dict[str, object]:
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 0
        document: dict[str, object] = json.loads(capsys.readouterr().out)
        return document

    first, again = answer(), answer("--offline")
    assert (first["facts"], again["facts"]) == ("registry", "cache")
    assert first["bytes"] == again["bytes"]
    assert first["bytes"]["weights"] == len(weights)  # type: ignore[index]
    assert first["reference"] == "team/odd:v2"


def test_a_tag_that_the_registry_lacks_is_said_with_the_nearest_names(store: Store) -> None:
    catalog = load_catalog(Project(Path("/nonexistent")))
    with pytest.raises(ModelUnavailable, match=r"nearest: .*; the registry at .* has no model llama3.1:9b \(HTTP 404"):
        find("llama3.1:9b", catalog, registry=Registry(store.address))
    assert find("llama3.1:8b", catalog, registry=Registry(store.address)).origin == "catalogue"


def test_a_manifest_that_lies_about_the_size_is_refused(store: Store, weights: bytes) -> None:
    store.push("library/liar", "1b", weights, file_type="F16", lie=4096)
    with pytest.raises(ModelUnavailable, match=f"says {len(weights) + 4096} bytes, but its file has {len(weights)}"):
        Registry(store.address).facts("liar:1b")


def test_a_blob_that_is_no_model_is_refused(store: Store) -> None:
    store.push("library/junk", "1b", b"<html>" * 1000, file_type="F16")
    with pytest.raises(ModelUnavailable, match="junk:1b: not a sound GGUF header: it does not begin with GGUF"):
        Registry(store.address).facts("junk:1b")
