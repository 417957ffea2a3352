"""The simulated server under OpenAI's dress: what its clients read, and that it is the same model beneath."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from deployctl.simulator.app import Faults, Options
from deployctl.simulator.process import running_simulator
from deployctl.simulator.scenario import Scenario

Make = Callable[..., Scenario]
FAST = {"prefill_tokens_per_s": 1000, "decode_tokens_per_s": [500.0, 800.0]}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    data = {
        "name": "small",
        "server": {"slots": 2, **FAST},
        "workload": {
            "prompt_tokens": {"dist": "constant", "mean": 20},
            "output_tokens": {"dist": "constant", "mean": 7},
            "think_s": {"dist": "constant", "mean": 0},
            "thinking_share": 0.5,
        },
        "slo": {"ttft_s": 5.0},
    }
    with running_simulator(Scenario.model_validate(data)) as url:
        yield url


def ask(url: str, body: dict[str, Any] | None, path: str = "/v1/chat/completions") -> tuple[int, str, str]:
    parts = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)) as connection:
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode())
        with connection.getresponse() as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()


def chat(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "sim:latest", "messages": [{"role": "user", "content": prompt}], **more}


def events(text: str) -> list[dict[str, Any]]:
    assert text.endswith("data: [DONE]\n\n")
    blocks = text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_a_stream_has_a_delta_per_token_a_finish_reason_the_usage_and_done(server: str) -> None:
    asked = chat("five words are a prompt", stream=True, max_tokens=6, stream_options={"include_usage": True})
    status, kind, text = ask(server, {**asked, "reasoning_effort": "none"})
    told = events(text)
    assert (status, kind) == (200, "text/event-stream")
    assert {event["object"] for event in told} == {"chat.completion.chunk"}
    assert len({event["id"] for event in told}) == 1
    deltas = [event["choices"][0] for event in told[:-1]]
    assert [len(delta["delta"]["content"].split()) for delta in deltas] == [1] * 6 + [0]
    assert [delta["finish_reason"] for delta in deltas] == [None] * 6 + ["length"]
    assert told[-1]["choices"] == []
    assert told[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_usage_comes_only_when_asked_and_the_length_from_the_scenario_when_not(server: str) -> None:
    told = events(ask(server, chat("a b", stream=True, reasoning_effort="none"))[2])
    assert not any("usage" in event for event in told)
    assert len(told) == 7 + 1
    assert told[-1]["choices"][0]["finish_reason"] == "stop"


def test_thinking_is_reasoning_and_parts_are_one_prompt(server: str) -> None:
    parts = [{"type": "text", "text": "one two"}, {"type": "image_url"}, {"type": "text", "text": "three"}]
    body = json.loads(ask(server, chat(parts, max_completion_tokens=4, max_tokens=9))[2])
    message = body["choices"][0]["message"]
    assert (len(message["reasoning"].split()), len(message["content"].split())) == (2, 2)
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert body["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "nope:1b"}, 404, "not_found_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        (chat("a", max_tokens="many"), 400, "invalid_request_error"),
        (chat(""), 400, "invalid_request_error"),
    ],
)
def test_errors_are_objects_as_openais_clients_expect(
    server: str, body: dict[str, Any], status: int, kind: str
) -> None:
    got, _, text = ask(server, body)
    assert got == status
    assert json.loads(text)["error"]["type"] == kind


def test_its_models_are_listed(server: str) -> None:
    assert [entry["id"] for entry in json.loads(ask(server, None, "/v1/models")[2])["data"]] == ["sim:latest"]


def test_an_error_in_mid_stream_is_an_event_and_nothing_is_done(make_scenario: Make) -> None:
    with running_simulator(make_scenario(**FAST), options=Options(faults=Faults(error_share=1))) as url:
        status, _, text = ask(url, chat("a", stream=True, max_tokens=9))
    assert status == 200
    assert "[DONE]" not in text
    assert "error" in json.loads(text.split("\n\n")[-2].removeprefix("data: "))
