from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ollama
import pytest

from deployctl.simulator.app import Faults, Options
from deployctl.simulator.process import running_simulator
from deployctl.simulator.scenario import Scenario

Make = Callable[..., Scenario]
FAST = {"prefill_tokens_per_s": 1000, "decode_tokens_per_s": [100.0, 160.0]}


@pytest.fixture
def fast(make_scenario: Make) -> Iterator[str]:
    with running_simulator(make_scenario(**FAST)) as url:
        yield url


def connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)


def post(url: str, path: str, body: Any) -> tuple[int, str]:
    with contextlib.closing(connect(url)) as connection:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data)
        with connection.getresponse() as reply:
            return reply.status, reply.read().decode()


def get(url: str, path: str) -> str:
    with contextlib.closing(connect(url)) as connection:
        connection.request("GET", path)
        with connection.getresponse() as reply:
            return reply.read().decode()


def listens(url: str) -> bool:
    try:
        return get(url, "/") == "Ollama is running"
    except (ConnectionError, http.client.HTTPException):
        return False


def chat(prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "sim",
        "messages": [{"role": "user", "content": prompt}],
        "options": {"num_predict": tokens},
        **more,
    }


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_official_client_lists_shows_pulls_and_finds_the_model_loaded(fast: str) -> None:
    with ollama.Client(host=fast) as client:
        assert client.list().models[0].model == "sim:latest"
        assert client.ps().models[0].model == "sim:latest"
        assert client.show("sim").details.format == "gguf"
        statuses = [progress.status for progress in client.pull("other:1b", stream=True)]
        assert statuses[0] == "pulling manifest"
        assert statuses[-1] == "success"
        assert {model.model for model in client.list().models} == {"sim:latest", "other:1b"}


def test_the_counters_are_those_of_the_model_in_nanoseconds(fast: str) -> None:
    status, text = post(fast, "/api/chat", chat("word " * 50, 20))
    lines = lines_of(text)
    assert status == 200
    assert [line["done"] for line in lines] == [False] * 20 + [True]
    final = lines[-1]
    assert final["done_reason"] == "length"
    assert (final["prompt_eval_count"], final["eval_count"]) == (50, 20)
    # Alone on the server: 50 tokens at 1000/s, then 20 at 100/s. The model's own times are exact, whatever the load.
    assert final["prompt_eval_duration"] == pytest.approx(50_000_000, rel=1e-6)
    assert final["eval_duration"] == pytest.approx(200_000_000, rel=1e-6)
    assert final["total_duration"] == pytest.approx(250_000_000, rel=1e-6)
    assert "load_duration" not in final


def test_a_third_request_waits_for_a_slot_and_its_total_shows_it(fast: str) -> None:
    finals: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: finals.append(lines_of(post(fast, "/api/chat", chat("a b", 80))[1])[-1]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waits = sorted(final["total_duration"] - final["prompt_eval_duration"] - final["eval_duration"] for final in finals)
    assert waits[1] < 10_000  # rounding of three counters
    assert waits[2] > 500_000_000  # two share 160 tokens/s: the first of them is done after about a second


def test_coalesced_chunks_still_count_every_token(make_scenario: Make) -> None:
    with running_simulator(make_scenario(coalesce=4, **FAST)) as url:
        lines = lines_of(post(url, "/api/generate", {"model": "sim", "prompt": "a", "options": {"num_predict": 10}})[1])
    assert [len(line["response"].split()) for line in lines] == [1, 4, 4, 1, 0]
    assert lines[-1]["eval_count"] == 10


def test_thinking_comes_first_and_can_be_turned_off(make_scenario: Make) -> None:
    with running_simulator(make_scenario(workload={"thinking_share": 0.5}, coalesce=4, **FAST)) as url:
        with ollama.Client(host=url) as client:
            assert "thinking" in (client.show("sim").capabilities or [])
        on = lines_of(post(url, "/api/chat", chat("a", 10))[1])
        off = lines_of(post(url, "/api/chat", chat("a", 10, think=False))[1])
    thought = "".join(line["message"].get("thinking", "") for line in on)
    said = "".join(line["message"]["content"] for line in on)
    assert (len(thought.split()), len(said.split())) == (5, 5)
    assert [bool(line["message"].get("thinking")) for line in on] == [True] * 2 + [False] * 3  # 1, 4 | 4, 1, final
    assert not any("thinking" in line["message"] for line in off)


def test_a_repeated_prompt_is_not_prefilled_again_but_counts_in_full(fast: str) -> None:
    prompt = "word " * 100
    first, second, unique = (
        lines_of(post(fast, "/api/chat", chat(text, 1))[1])[-1] for text in (prompt, prompt, "unique " + prompt)
    )
    assert first["prompt_eval_duration"] == pytest.approx(100_000_000, rel=1e-6)
    assert second["prompt_eval_duration"] == pytest.approx(1_000_000, rel=1e-6)  # one token always is
    assert second["prompt_eval_count"] == 100
    assert unique["prompt_eval_duration"] == pytest.approx(101_000_000, rel=1e-6)


def test_a_second_turn_prefills_only_what_is_new(fast: str) -> None:
    question = {"role": "user", "content": "word " * 100}
    answer = lines_of(post(fast, "/api/chat", {**chat("", 5), "messages": [question]})[1])
    said = {"role": "assistant", "content": "".join(line["message"]["content"] for line in answer)}
    more = {
        **chat("", 5),
        "messages": [question, said, {"role": "user", "content": "these are the ten more words of a second turn"}],
    }
    final = lines_of(post(fast, "/api/chat", more)[1])[-1]
    assert final["prompt_eval_count"] == 115
    assert final["prompt_eval_duration"] == pytest.approx(10_000_000, rel=1e-6)


def test_a_full_queue_answers_503_in_ollamas_words(make_scenario: Make) -> None:
    with running_simulator(make_scenario(queue_limit=0, **FAST)) as url:
        busy = [connect(url) for _ in range(2)]
        for connection in busy:
            connection.request("POST", "/api/chat", json.dumps(chat("a", 200)).encode())
        deadline = time.monotonic() + 20
        while json.loads(get(url, "/simulator/state"))["active"] < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        status, text = post(url, "/api/chat", chat("a", 1))
        for connection in busy:
            connection.close()
    assert status == 503
    assert json.loads(text) == {"error": "server busy, please try again.  maximum pending requests exceeded"}


def test_a_client_that_hangs_up_frees_its_slot(make_scenario: Make) -> None:
    scenario = make_scenario(**(FAST | {"slots": 1, "decode_tokens_per_s": [100.0]}))
    with running_simulator(scenario) as url:
        gone = connect(url)
        gone.request("POST", "/api/chat", json.dumps(chat("a", 100_000)).encode())
        with gone.getresponse() as reply:
            reply.read(1)
        gone.close()
        final = lines_of(post(url, "/api/chat", chat("a", 1))[1])[-1]
    assert final["total_duration"] < 5e9


def test_errors_in_mid_stream_come_under_200_and_cut_streams_never_end(make_scenario: Make) -> None:
    with running_simulator(make_scenario(**FAST), options=Options(faults=Faults(error_share=1))) as url:
        status, text = post(url, "/api/chat", chat("a", 10))
        assert status == 200
        assert "error" in lines_of(text)[-1]
        assert not any(line.get("done") for line in lines_of(text))
    with running_simulator(make_scenario(**FAST), options=Options(faults=Faults(cut_share=1))) as url:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            post(url, "/api/chat", chat("a", 10))
        assert json.loads(get(url, "/simulator/state"))["active"] == 0


def test_without_stream_the_whole_answer_is_one_document(fast: str) -> None:
    text = post(fast, "/api/chat", chat("a b c", 4, stream=False))[1]
    body = json.loads(text)
    assert len(body["message"]["content"].split()) == body["eval_count"] == 4


def test_an_empty_prompt_only_loads_or_unloads(fast: str) -> None:
    load = json.loads(post(fast, "/api/generate", {"model": "sim"})[1])
    assert (load["done"], load["done_reason"]) == (True, "load")
    unload = json.loads(post(fast, "/api/chat", {"model": "sim", "messages": [], "keep_alive": 0})[1])
    assert unload["done_reason"] == "unload"
    assert json.loads(get(fast, "/api/ps")) == {"models": []}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", b"", 400, "missing request body"),
        ("/api/chat", b"{nope", 400, "error"),
        ("/api/chat", b"[1]", 400, "model is required"),
        ("/api/chat", {"model": "nope:1b"}, 404, "model 'nope:1b' not found"),
        ("/api/chat", {"model": "sim", "messages": ["x"]}, 400, "invalid request"),
        ("/api/chat", chat("a", "many"), 400, "invalid request"),  # type: ignore[arg-type]
        ("/api/nothing", {}, 404, "404 page not found"),
        ("/api/version", {}, 405, "405"),
    ],
)
def test_bad_requests_get_their_status_and_leave_the_server_up(
    fast: str, path: str, body: Any, status: int, words: str
) -> None:
    got, text = post(fast, path, body)
    assert got == status
    assert words in text
    assert get(fast, "/") == "Ollama is running"


def test_one_connection_serves_pipelined_and_chunked_requests_in_order(fast: str) -> None:
    parts = urlsplit(fast)
    body = json.dumps(chat("a", 2, stream=False)).encode()
    chunked = b"5\r\n" + body[:5] + b"\r\n%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=30) as client:
        client.sendall(
            b"POST /api/chat HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked
            + b"GET /api/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        received = b""
        while block := client.recv(65536):
            received += block
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.index(b'"eval_count":2') < received.index(b'"version"')


def test_it_ends_with_whoever_started_it(tmp_path: Path, reference: Scenario) -> None:
    # A parent that is killed outright, while its simulator serves.
    script = (
        "import sys, time\n"
        "from deployctl.simulator.scenario import parse_scenario\n"
        "from deployctl.simulator.process import running_simulator\n"
        "import json\n"
        "with running_simulator(parse_scenario(json.loads(sys.stdin.readline()))) as url:\n"
        "    print(url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(reference.model_dump_json() + "\n")
        parent.stdin.flush()
        url = parent.stdout.readline().strip()
        assert get(url, "/") == "Ollama is running"
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while listens(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not listens(url)


def test_the_command_line_prints_where_it_listens_and_refuses_a_bad_file(
    scenarios_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "deployctl.simulator.server", "--scenario"]
    with subprocess.Popen(
        [*command, str(scenarios_folder / "reference.yml")], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        assert said["scenario"] == "reference"
        assert json.loads(get(said["url"], "/api/version"))["version"]
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) == 0
    refused = subprocess.run([*command, str(tmp_path / "none.yml")], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "none.yml" in refused.stderr
