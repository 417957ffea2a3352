"""The façade through the official client, over the real engine."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from deployctl.sandbox.model import MODEL, gguf_path

pytestmark = pytest.mark.engine


@pytest.fixture
def client(engine_url: str) -> Iterator[ollama.Client]:
    client = ollama.Client(engine_url)
    yield client
    client._client.close()  # ollama 0.6 has no public close


def test_the_version_is_marked_as_embedded_and_parses(engine_url: str) -> None:
    with urllib.request.urlopen(f"{engine_url}/api/version") as answer:
        version = json.load(answer)["version"]
    numbers, _, mark = version.partition("-")
    assert mark == "embedded"
    assert tuple(map(int, numbers.split("."))) >= (0, 30, 0)


def test_list_shows_the_model_with_its_quantization(client: ollama.Client) -> None:
    [entry] = client.list().models
    assert entry.model == MODEL.reference
    assert entry.size is not None
    assert entry.size >= MODEL.bytes
    assert entry.details is not None
    assert (entry.details.family, entry.details.quantization_level) == ("gemma3", "Q4_K_M")


def test_ps_shows_the_loaded_model_its_context_and_no_vram(client: ollama.Client) -> None:
    [entry] = client.ps().models
    assert (entry.model, entry.context_length, entry.size_vram) == (MODEL.reference, 2048, 0)
    # Weights alone are 235 MiB (llama.cpp's own figure for this file); the KV cache and compute buffers come on top.
    assert entry.size is not None
    assert entry.size > 235 * 1024**2


def test_show_gives_the_metadata_of_the_file(client: ollama.Client) -> None:
    info = client.show(MODEL.reference).modelinfo
    assert info is not None
    # Values from the model's card and from llama.cpp's own dump of this file.
    assert info["general.architecture"] == "gemma3"
    assert info["gemma3.block_count"] == 18
    assert info["gemma3.attention.sliding_window"] == 512
    assert info["gemma3.context_length"] == 32768
    assert info["general.parameter_count"] == 268_098_176
    assert "tokenizer.ggml.tokens" not in info


def test_num_predict_ends_with_length_and_exact_counts(client: ollama.Client) -> None:
    *tokens, last = client.chat(
        MODEL.reference,
        [{"role": "user", "content": "Tell me a long story about the sea."}],
        stream=True,
        options={"num_predict": 12, "seed": 7},
    )
    assert (last.done, last.done_reason, last.eval_count) == (True, "length", 12)
    assert 1 <= len(tokens) <= 12
    assert all(token.message.content for token in tokens)
    assert last.total_duration is not None
    assert last.total_duration >= (last.load_duration or 0) + last.prompt_eval_duration + last.eval_duration


def test_the_streamed_text_equals_the_text_in_one_piece(client: ollama.Client) -> None:
    options = {"num_predict": 24, "seed": 3, "temperature": 0}
    prompt = 'A list of quoted names: "Zoë", "Iñaki", "O\\\'Brien", <b>,'
    pieces = [part.response for part in client.generate(MODEL.reference, prompt, stream=True, options=options)]
    whole = client.generate(MODEL.reference, prompt, options=options)
    assert "".join(pieces) == whole.response
    assert whole.eval_count == 24


def test_the_bos_token_is_counted_once(client: ollama.Client) -> None:
    # "Hello there" is two tokens of Gemma's vocabulary; with BOS three.
    answer = client.generate(MODEL.reference, "Hello there", raw=True, options={"num_predict": 1})
    assert answer.prompt_eval_count == 3


def test_a_stop_sequence_ends_with_stop(client: ollama.Client) -> None:
    answer = client.generate(
        MODEL.reference, "1, 2, 3, 4, 5,", options={"num_predict": 40, "temperature": 0, "stop": ["9"]}
    )
    assert answer.done_reason == "stop"
    assert "9" not in answer.response


def test_a_json_schema_constrains_the_answer(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = client.generate(MODEL.reference, "A number:", format=schema, options={"num_predict": 60, "seed": 1})
    assert isinstance(json.loads(answer.response)["n"], int)


@pytest.mark.parametrize("endpoint", ["chat", "generate", "show", "delete"])
def test_an_unknown_model_is_404_and_named(client: ollama.Client, endpoint: str) -> None:
    calls = {
        "chat": lambda: client.chat("nope:1b", [{"role": "user", "content": "x"}]),
        "generate": lambda: client.generate("nope:1b", "x"),
        "show": lambda: client.show("nope:1b"),
        "delete": lambda: client.delete("nope:1b"),
    }
    with pytest.raises(ollama.ResponseError, match="model 'nope:1b' not found") as caught:
        calls[endpoint]()
    assert caught.value.status_code == 404


def test_pulling_what_is_not_there_fails_in_the_stream(client: ollama.Client) -> None:
    seen = []
    with pytest.raises(ollama.ResponseError, match="pull model manifest: file does not exist"):
        seen.extend(client.pull("nope:1b", stream=True))
    assert [step.status for step in seen] == ["pulling manifest"]


def test_pulling_what_is_there_succeeds(client: ollama.Client) -> None:
    assert client.pull(MODEL.reference).status == "success"


def test_thinking_is_refused_for_a_model_without_it(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="does not support thinking") as caught:
        client.chat(MODEL.reference, [{"role": "user", "content": "x"}], think=True)
    assert caught.value.status_code == 400


def test_a_file_is_uploaded_registered_used_and_deleted(client: ollama.Client, cache_dir: Path) -> None:
    digest = client.create_blob(gguf_path(cache_dir))
    assert digest == f"sha256:{MODEL.sha256}"
    assert client.create("copied:1", files={"model.gguf": digest}).status == "success"
    assert {entry.model for entry in client.list().models} == {"copied:1", MODEL.reference}
    client.delete("copied:1")
    # The weights belong to the other model too, so they stay.
    assert [entry.model for entry in client.list().models] == [MODEL.reference]
    assert client.generate(MODEL.reference, "x", options={"num_predict": 1}).done
