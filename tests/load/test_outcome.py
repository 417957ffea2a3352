"""Answers that end well and are none: nobody is served by an empty answer, nor measured by a count that cannot be."""

import json
from pathlib import Path

import pytest

from deployctl.load.exchange import Exchange
from deployctl.load.outcome import to_sample
from deployctl.load.samples import Failure, Sample
from deployctl.load.streams import NdjsonStream


def answered(*frames: dict[str, object], asked: int = 16, words: int = 0) -> Sample:
    """The sample of an exchange whose body is these frames, a chunk each, a tenth of a second apart."""
    exchange = Exchange(NdjsonStream())
    body = [json.dumps(frame).encode() + b"\n" for frame in frames]
    exchange.feed(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n", 0.05)
    for number, line in enumerate(body, 1):
        exchange.feed(b"%x\r\n%s\r\n" % (len(line), line), number / 10)
    exchange.feed(b"0\r\n\r\n", len(body) / 10 + 0.01)
    return to_sample(
        exchange, prompt_words=words, user=1, seq=0, intended_s=0.0, sent_s=0.0, think_s=0.0, asked_tokens=asked
    )


def word(text: str) -> dict[str, object]:
    return {"message": {"role": "assistant", "content": text}, "done": False}


def end(**counters: object) -> dict[str, object]:
    return {"message": {"content": ""}, "done": True, "done_reason": "stop", **counters}


def test_an_answer_with_tokens_is_a_success() -> None:
    sample = answered(word("a"), word("b"), end(eval_count=2))
    assert sample.ok
    assert sample.output_tokens == 2


def test_an_empty_answer_is_a_failure_however_quick() -> None:
    sample = answered(end())
    assert sample.error == "empty"
    assert sample.ttft_s == float("inf")


@pytest.mark.parametrize("count", [-5, 1e30, 1.5, "12", True, None, 10**12])
def test_a_count_that_counts_nothing_is_a_failure(count: object) -> None:
    assert answered(word("a"), word("b"), end(eval_count=count)).error == "bad_counters"


def test_a_count_above_what_was_asked_for_is_a_failure() -> None:
    # num_predict bounds eval_count; a server that says more would look faster per token than it is.
    assert answered(word("a"), word("b"), end(eval_count=1000), asked=16).error == "bad_counters"


def test_a_long_stream_without_a_count_is_a_failure() -> None:
    assert answered(*(word("x") for _ in range(10)), end()).error == "bad_counters"


@pytest.mark.parametrize("duration", ["12ms", -1, 1e300])
def test_a_duration_that_is_none_is_a_failure(duration: object) -> None:
    assert answered(word("a"), end(eval_count=1, total_duration=duration)).error == "bad_counters"


def test_a_prompt_that_ollama_cut_to_its_context_is_a_failure(root: Path) -> None:
    """Recorded from a genuine Ollama: a prompt of 3,000 words, of which its final frame counts 1,027 tokens."""
    frames = [
        json.loads(line) for line in (root / "tests/ollama/data/generate-too-long.ndjson").read_text().splitlines()
    ]
    sample = answered(*frames, asked=24, words=3000)
    assert sample.error == Failure.PROMPT_CUT
    assert "1027 prompt tokens counted of 3000 words" in sample.message
    assert answered(*frames, asked=24, words=1000).ok


def test_a_server_that_counts_no_prompt_is_believed() -> None:
    assert answered(word("a"), end(eval_count=1), words=3000).ok
