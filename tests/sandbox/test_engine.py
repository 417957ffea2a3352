"""Load, slots, queues, disconnects and deaths: the façade over the real engine, each test with its own server."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from deployctl.sandbox import processes
from deployctl.sandbox.engine import place_model, start_engine, stop_engine
from deployctl.sandbox.model import MODEL, gguf_path

pytestmark = pytest.mark.engine


class Engine:
    """One engine of a test, with its log."""

    def __init__(self, cache_dir: Path, folder: Path, **environment: str) -> None:
        place_model(folder / "models", gguf_path(cache_dir))
        self.log_file = folder / "log"
        settings = {"OLLAMA_NUM_PARALLEL": "2", "OLLAMA_CONTEXT_LENGTH": "512", **environment}
        self.process, self.url = start_engine(cache_dir, folder / "models", self.log_file, settings)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def children(self) -> set[int]:
        return processes.descendants(self.process.pid)

    def connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.url)
        assert address.hostname is not None
        return http.client.HTTPConnection(address.hostname, address.port, timeout=120)

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """Post one request and return the status and the last document of the answer."""
        with contextlib.closing(self.connect()) as connection:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read().splitlines()[-1])

    def generate(self, tokens: int, **options: Any) -> tuple[int, dict[str, Any]]:
        return self.post(
            "/api/generate",
            model=MODEL.reference,
            prompt="Once upon a time",
            options={"num_predict": tokens, "seed": 1, **options},
        )

    def loaded(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/api/ps", timeout=30) as answer:
            models: list[dict[str, Any]] = json.load(answer)["models"]
        return models


@pytest.fixture
def engine(cache_dir: Path, engine_packages: None, tmp_path: Path) -> Iterator[Any]:
    engines: list[Engine] = []

    def start(**environment: str) -> Engine:
        engines.append(Engine(cache_dir, tmp_path, **environment))
        return engines[-1]

    yield start
    for each in engines:
        stop_engine(each.process)


def eventually(condition: Any, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def test_eight_clients_on_four_slots_are_all_served_and_the_later_ones_wait(engine: Any) -> None:
    server = engine(OLLAMA_NUM_PARALLEL="4")
    server.generate(1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.generate(24), range(8)))
    assert [status for status, _ in answers] == [200] * 8
    assert all(last["done"] and last["eval_count"] == 24 for _, last in answers)
    # Ollama's counters: what is in the total but in no part is the wait for a slot.
    waits = sorted(
        last["total_duration"] - last.get("load_duration", 0) - last["prompt_eval_duration"] - last["eval_duration"]
        for _, last in answers
    )
    fastest = min(last["eval_duration"] for _, last in answers)
    assert waits[3] < fastest / 2, "four are served at once"
    assert waits[4] > fastest / 2, "the others wait for about one generation"
    assert "-np 4" in server.log


def test_the_log_names_slots_and_buffers_as_ollamas_journal_does(engine: Any) -> None:
    server = engine(LLAMA_ARG_THREADS="1", OLLAMA_KV_CACHE_TYPE="q8_0", OLLAMA_FLASH_ATTENTION="1")
    server.generate(1)
    [line] = [line for line in server.log.splitlines() if 'msg="starting llama-server" cmd=' in line]
    for words in ("-c 1024 -np 2", "--cache-type-k q8_0 --cache-type-v q8_0", "--flash-attn on"):
        assert words in line
    assert "KV buffer size =" in server.log
    assert "n_threads = 1" in server.log  # LLAMA_ARG_ variables pass through


def test_another_context_reloads_and_sampling_options_do_not(engine: Any) -> None:
    server = engine()
    server.generate(1)
    first = server.children()
    server.generate(1, temperature=0.1)
    assert server.children() == first
    server.generate(1, num_ctx=256)
    assert not server.children() & first
    assert [model["context_length"] for model in server.loaded()] == [256]


def test_only_the_load_queue_is_bounded(engine: Any) -> None:
    server = engine(OLLAMA_MAX_QUEUE="1", OLLAMA_NUM_PARALLEL="1")
    with ThreadPoolExecutor(6) as pool:
        # Nothing is loaded: one request loads, one waits behind it, the others are turned away.
        answers = list(pool.map(lambda _: server.generate(2), range(6)))
    assert sorted(status for status, _ in answers) == [200, 200, 503, 503, 503, 503]
    refusal = next(last for status, last in answers if status == 503)
    assert refusal == {"error": "server busy, please try again.  maximum pending requests exceeded"}
    with ThreadPoolExecutor(6) as pool:
        # Loaded: the same six wait for the one slot.
        assert [status for status, _ in pool.map(lambda _: server.generate(2), range(6))] == [200] * 6


def test_a_client_that_hangs_up_frees_its_slot(engine: Any) -> None:
    server = engine(OLLAMA_NUM_PARALLEL="1", OLLAMA_CONTEXT_LENGTH="4096")
    server.generate(1)
    connection = server.connect()
    body = {"model": MODEL.reference, "prompt": "Once", "options": {"num_predict": 4000, "seed": 1}}
    connection.request("POST", "/api/generate", json.dumps(body))
    answer = connection.getresponse()
    assert not json.loads(answer.readline())["done"]
    answer.close()
    connection.close()
    status, last = server.generate(2)
    assert (status, last["eval_count"]) == (200, 2)

    # llama.cpp logs how far each request came: load, the one that was given up, the short one.
    def lengths() -> list[int]:
        return [int(size) for size in re.findall(r"stop processing: n_tokens = (\d+)", server.log)]

    assert eventually(lambda: len(lengths()) == 3)
    assert max(lengths()) < 4000


def test_a_client_that_hangs_up_while_waiting_leaves_the_queue(engine: Any) -> None:
    server = engine(OLLAMA_NUM_PARALLEL="1")
    server.generate(1)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.generate, 60)
        time.sleep(0.3)
        waiting = server.connect()
        waiting.request("POST", "/api/generate", json.dumps({"model": MODEL.reference, "prompt": "never"}))
        time.sleep(0.3)
        waiting.close()
        assert running.result()[1]["eval_count"] == 60
        assert server.generate(2)[1]["eval_count"] == 2
    assert eventually(lambda: " 499 " in server.log)


def test_a_killed_engine_breaks_the_stream_with_an_error_line_and_the_next_request_loads_anew(engine: Any) -> None:
    server = engine()
    server.generate(1)
    with contextlib.closing(server.connect()) as connection:
        body = {"model": MODEL.reference, "prompt": "Once", "options": {"num_predict": 400}}
        connection.request("POST", "/api/generate", json.dumps(body))
        answer = connection.getresponse()
        answer.readline()
        [child] = server.children()
        os.kill(child, signal.SIGKILL)
        lines = [json.loads(line) for line in answer]
    assert answer.status == 200
    assert set(lines[-1]) == {"error"}
    assert not any(line.get("done") for line in lines)
    status, last = server.generate(2)
    assert (status, last["eval_count"]) == (200, 2)
    assert child not in server.children()


def test_the_engine_dies_with_the_facade(engine: Any) -> None:
    server = engine()
    server.generate(1)
    children = server.children()
    assert children
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_a_load_that_fails_is_a_500_in_ollamas_words(engine: Any, tmp_path: Path) -> None:
    server = engine(OLLAMA_KV_CACHE_TYPE="no_such_type")
    status, answer = server.generate(1)
    assert status == 500
    assert answer["error"].startswith("llama-server process has terminated: exit status 1")
    assert server.loaded() == []


def test_keep_alive_zero_unloads_and_minus_one_stays(engine: Any) -> None:
    server = engine(OLLAMA_KEEP_ALIVE="-1")
    assert server.post("/api/generate", model=MODEL.reference)[1]["done_reason"] == "load"
    [model] = server.loaded()
    assert model["expires_at"] > "2300"
    assert server.post("/api/chat", model=MODEL.reference, messages=[], keep_alive=0)[1]["done_reason"] == "unload"
    assert eventually(lambda: server.loaded() == [] and not server.children())
    server.post("/api/generate", model=MODEL.reference, prompt="x", keep_alive="300ms", options={"num_predict": 1})
    assert eventually(lambda: server.loaded() == [] and not server.children())


def test_a_client_that_hangs_up_while_loading_gives_up_the_load(engine: Any) -> None:
    server = engine()
    connection = server.connect()
    connection.request("POST", "/api/generate", json.dumps({"model": MODEL.reference}))
    assert eventually(server.children)
    connection.close()
    assert eventually(lambda: not server.children())
    assert server.generate(1)[0] == 200


def test_sigterm_ends_facade_and_engine(engine: Any) -> None:
    server = engine()
    server.generate(1)
    children = server.children()
    server.process.terminate()
    assert server.process.wait(20) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_concurrent_first_requests_load_once(engine: Any) -> None:
    server = engine()
    barrier = threading.Barrier(4)

    def first(_: int) -> int:
        barrier.wait()
        status, _ = server.generate(2)
        return int(status)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(first, range(4))) == [200] * 4
    assert server.log.count('msg="starting llama-server"') == 1
