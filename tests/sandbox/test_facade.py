"""The façade's pure parts: settings, names, prompts, counters, log lines, the queue of a slot."""

from __future__ import annotations

import asyncio
import hashlib
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from deployctl.sandbox.facade import log
from deployctl.sandbox.facade.config import parse_duration, read_config
from deployctl.sandbox.facade.engine import LoadOptions, Slots, command
from deployctl.sandbox.facade.errors import ApiError
from deployctl.sandbox.facade.generation import counters
from deployctl.sandbox.facade.gguf import Header, read_header
from deployctl.sandbox.facade.prompts import base_model_prompt, engine_body, load_options, without_bos
from deployctl.sandbox.facade.store import Model, Store, human_number, parse_name

GEMMA = Header({"general.architecture": "gemma3", "gemma3.context_length": 32768}, 268_098_176, "<bos>")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("300ms", 0.3),
        ("10", 10),
        (0, 0),
        ("-1", math.inf),
        (-1, math.inf),
        ("-1s", math.inf),
    ],
)
def test_durations_are_gos_or_seconds_and_negative_ones_mean_for_ever(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "5m!", "1h-3m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


def test_the_defaults_are_ollamas() -> None:
    config = read_config({}, "/opt/x/bin/ollama")
    assert (config.host, config.port) == ("127.0.0.1", 11434)
    assert (config.num_parallel, config.context_length, config.max_queue, config.keep_alive) == (1, 4096, 512, 300)
    assert (config.load_timeout, config.flash_attention, config.kv_cache_type) == (300, "auto", "")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0", "0.0.0.0", 11434),
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        (":8080", "127.0.0.1", 8080),
        ("http://10.0.0.1", "10.0.0.1", 80),
        ("[::1]:8080", "::1", 8080),
        ("::1", "::1", 11434),
        ('"127.0.0.1:1234"', "127.0.0.1", 1234),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(text: str, host: str, port: int) -> None:
    config = read_config({"OLLAMA_HOST": text}, "ollama")
    assert (config.host, config.port) == (host, port)


def test_a_value_that_cannot_be_read_counts_as_unset() -> None:
    config = read_config({"OLLAMA_NUM_PARALLEL": "many", "OLLAMA_KEEP_ALIVE": "soon"}, "ollama")
    assert (config.num_parallel, config.keep_alive) == (1, 300)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("gemma3", "gemma3:latest"),
        ("gemma3:270m", "gemma3:270m"),
        ("library/gemma3:270m", "gemma3:270m"),
        ("someone/model:tag", "someone/model:tag"),
        ("registry.ollama.ai/library/gemma3:270m", "gemma3:270m"),
        ("host:5000/space/model:tag", "host:5000/space/model:tag"),
    ],
)
def test_names_are_shown_without_what_equals_the_defaults(text: str, short: str) -> None:
    name = parse_name(text)
    assert name is not None
    assert name.short == short


@pytest.mark.parametrize("text", ["", ":", "a:", "../../etc/passwd", "a/b/c/d:e", "a b", "x:../y", "/x"])
def test_what_could_leave_the_models_folder_is_no_name(text: str) -> None:
    assert parse_name(text) is None


def test_parameter_counts_read_as_ollama_shows_them() -> None:
    assert human_number(268_098_176) == "268.10M"
    assert human_number(8_030_261_312) == "8.0B"


def test_a_conversation_becomes_questions_and_answers_without_bos() -> None:
    text = base_model_prompt(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Three?"},
        ]
    )
    assert text == "Be brief.\n\nQuestion: One?\n\nAnswer: Two.\n\nQuestion: Three?\n\nAnswer:"


def test_a_rendered_bos_token_is_dropped_once() -> None:
    assert without_bos("<bos><start_of_turn>user", GEMMA) == "<start_of_turn>user"
    assert without_bos("plain", GEMMA) == "plain"


def test_an_open_generation_is_bounded_by_ten_contexts() -> None:
    assert engine_body("x", {}, 2048, None)["n_predict"] == 20480
    assert engine_body("x", {"num_predict": 7}, 2048, None)["n_predict"] == 7


def test_sampling_defaults_are_ollamas_and_not_the_engines() -> None:
    body = engine_body("x", {}, 2048, None)
    assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (0.8, 40, 0.9, 0.0)


def test_an_option_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ApiError, match='option "seed" must be of type integer'):
        engine_body("x", {"seed": "seven"}, 2048, None)


def test_the_context_is_capped_at_the_training_context() -> None:
    config = read_config({"OLLAMA_CONTEXT_LENGTH": "999999"}, "ollama")
    assert load_options({}, config, GEMMA) == LoadOptions(num_ctx=32768)
    assert load_options({"num_ctx": 100}, config, GEMMA).num_ctx == 100


def test_every_slot_owns_its_context_on_the_command_line() -> None:
    config = read_config({"OLLAMA_NUM_PARALLEL": "4", "OLLAMA_KV_CACHE_TYPE": "q8_0"}, "ollama")
    name = parse_name("m")
    assert name is not None
    model = Model(name, "", 0, "", "/w", "sha256:0", {}, "", "")
    text = " ".join(command(config, model, GEMMA, LoadOptions(2048, num_thread=3), 999))
    assert "-c 8192 -np 4" in text
    assert "--cache-type-k q8_0 --cache-type-v q8_0" in text
    assert text.endswith("-b 512 -ub 512 -t 3")


def test_counters_are_nanoseconds_count_cached_tokens_and_leave_out_zeros() -> None:
    last = {"timings": {"prompt_n": 3, "cache_n": 5, "prompt_ms": 1.5, "predicted_n": 0, "predicted_ms": 0.0}}
    assert counters(last, started_ns=100, loaded_ns=100, now_ns=2_000_100) == {
        "total_duration": 2_000_000,
        "prompt_eval_count": 8,
        "prompt_eval_duration": 1_500_000,
    }


def test_time_stamps_are_rfc3339_with_nanoseconds() -> None:
    # 1,000,000,000 s after the epoch is 2001-09-09T01:46:40Z.
    assert log.rfc3339(1_000_000_000_000_000_007) == "2001-09-09T01:46:40.000000007Z"


def test_slots_are_given_in_the_order_of_arrival_and_a_cancelled_wait_costs_none() -> None:
    async def scenario() -> list[str]:
        slots, order = Slots(1), []

        async def use(name: str) -> None:
            await slots.acquire()
            order.append(name)
            await asyncio.sleep(0)
            slots.release()

        await slots.acquire()
        tasks = {name: asyncio.create_task(use(name)) for name in "abcd"}
        await asyncio.sleep(0)
        tasks["b"].cancel()
        slots.release()
        # Cancelled in the very moment in which its turn has come.
        tasks["a"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        await asyncio.wait_for(use("e"), 1)
        return order

    assert asyncio.run(scenario()) == ["c", "d", "e"]


def _gguf(path: Path) -> Path:
    """Write a small GGUF file by hand, after the format's specification."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text.encode())) + text.encode()

    tokens = ["<pad>", "<eos>", "<bos>", *(f"t{i}" for i in range(400))]
    pairs: list[bytes] = [
        string("general.architecture") + struct.pack("<I", 8) + string("llama"),
        string("general.file_type") + struct.pack("<II", 4, 7),
        string("llama.attention.head_count_kv") + struct.pack("<IIQ3I", 9, 4, 3, 8, 8, 4),
        string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(string, tokens)),
        string("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 403) + bytes(4 * 403),
        string("tokenizer.ggml.bos_token_id") + struct.pack("<II", 4, 2),
        string("llama.rope.freq_base") + struct.pack("<If", 6, 0.5),
    ]
    tensor = string("w") + struct.pack("<IQQIQ", 2, 640, 1000, 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor + bytes(64))
    return path


def test_a_gguf_header_is_read_without_its_vocabulary(tmp_path: Path) -> None:
    header = read_header(str(_gguf(tmp_path / "m.gguf")))
    assert header.metadata == {
        "general.architecture": "llama",
        "general.file_type": 7,
        "llama.attention.head_count_kv": [8, 8, 4],
        "tokenizer.ggml.bos_token_id": 2,
        "llama.rope.freq_base": 0.5,
    }
    assert (header.parameters, header.bos, header.file_type) == (640_000, "<bos>", "Q8_0")


@pytest.mark.parametrize("content", [b"not a model", b"GGUF" + bytes(3), b"GGUF" + struct.pack("<IQQ", 3, 9, 9)])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=r"invalid file magic|damaged GGUF header"):
        read_header(str(tmp_path / "x"))


def test_the_store_keeps_ollamas_layout_and_shares_blobs(tmp_path: Path) -> None:
    data = _gguf(tmp_path / "m.gguf").read_bytes()
    store = Store(str(tmp_path / "models"))
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob: Any = store.open_blob(digest)
    blob.write(data[:100])
    blob.write(data[100:])
    blob.finish()
    for text in ("one:1", "two"):
        name = parse_name(text)
        assert name is not None
        store.create(name, digest)
    root = tmp_path / "models"
    assert (root / "blobs" / digest.replace(":", "-")).read_bytes() == data
    assert (root / "manifests/registry.ollama.ai/library/one/1").is_file()
    assert {model.name.short for model in store.list()} == {"one:1", "two:latest"}
    store.delete("one:1")
    assert (root / "blobs" / digest.replace(":", "-")).exists()
    store.delete("two")
    assert list((root / "blobs").iterdir()) == []


def test_a_blob_with_another_digest_is_not_kept(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    blob = store.open_blob("sha256:" + "0" * 64)
    blob.write(b"other")
    with pytest.raises(ApiError, match="digest mismatch"):
        blob.finish()
    assert list((tmp_path / "blobs").iterdir()) == []
