"""Reading Ollama's NDJSON: first tokens, counts, the final frame."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.load.samples import Failure
from deployctl.load.streams import BadStream, NdjsonStream, SseStream

FINAL = {"done": True, "done_reason": "stop", "eval_count": 3, "prompt_eval_count": 9, "eval_duration": 1_500_000_000}


def lines(*frames):
    return b"".join(json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in frames)


def content(text, **more):
    return {"message": {"role": "assistant", "content": text, **more}, "done": False}


@given(st.lists(st.integers(0, 400)))
def test_the_answer_is_the_same_however_the_segments_fall(positions):
    data = lines(content(""), content("ñandú ☕"), content("two"), FINAL)
    edges = [0, *sorted(position % len(data) for position in positions), len(data)]
    stream = NdjsonStream(keep=True)
    for moment, (a, b) in enumerate(itertools.pairwise(edges)):
        if b > a:
            stream.feed(data[a:b], float(moment))
    final = stream.finish(99.0)
    assert final is not None
    assert (final.output_tokens, final.prompt_tokens, final.done_reason, final.eval_s) == (3, 9, "stop", 1.5)
    assert math.isnan(final.load_s)  # Ollama leaves out what is zero
    assert stream.chunks == 4
    assert stream.text() == "ñandú ☕two"


def test_empty_content_is_no_token():
    stream = NdjsonStream()
    stream.feed(lines(content("")), 1.0)
    stream.feed(lines(content("x")), 2.0)
    assert (stream.first_token_s, stream.first_visible_s) == (2.0, 2.0)


def test_thinking_is_a_token_but_not_a_visible_one():
    stream = NdjsonStream()
    stream.feed(lines(content("", thinking="a")), 1.0)
    stream.feed(lines(content("", thinking='quoting "content":"x" is thinking too')), 2.0)
    stream.feed(lines(content("", thinking="b"), content("y")), 3.0)
    assert (stream.first_token_s, stream.first_visible_s) == (1.0, 3.0)


def test_generate_shows_response_and_thinking_at_the_top():
    stream = NdjsonStream()
    stream.feed(lines({"response": "", "thinking": "hm", "done": False}), 1.0)
    stream.feed(lines({"response": "yes", "done": False}), 2.0)
    assert (stream.first_token_s, stream.first_visible_s) == (1.0, 2.0)


def test_a_first_token_may_come_with_the_final_frame():
    stream = NdjsonStream()
    stream.feed(lines(content("x") | FINAL), 4.0)
    assert stream.first_token_s == 4.0
    assert stream.finish(4.0).output_tokens == 3


def test_a_last_line_without_a_newline_counts_if_it_is_whole():
    whole, broken = NdjsonStream(), NdjsonStream()
    whole.feed(lines(FINAL)[:-1], 1.0)
    broken.feed(lines(FINAL)[:-9], 1.0)
    assert whole.finish(2.0) is not None
    assert broken.finish(2.0) is None


def test_text_that_merely_mentions_an_error_is_text():
    stream = NdjsonStream()
    stream.feed(lines(content("x")), 1.0)
    stream.feed(lines(content('the field "error" is empty')), 2.0)
    stream.feed(lines(FINAL), 3.0)
    assert stream.finish(3.0) is not None


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (b'{"error":"oops"}\n', Failure.STREAM),
        (b'{"error": "oops"}\n', Failure.STREAM),
        (b"[1]\n", Failure.BAD_JSON),
        (b'{"message"\n', Failure.BAD_JSON),
        (b'{"message":{"content":"\xff"}}\n', Failure.BAD_UTF8),
    ],
)
def test_what_breaks_the_protocol_has_its_class(data, failure):
    with pytest.raises(BadStream) as caught:
        NdjsonStream().feed(data, 1.0)
    assert caught.value.failure == failure


def test_an_error_line_is_found_after_the_first_tokens():
    stream = NdjsonStream()
    stream.feed(lines(content("x")), 1.0)
    with pytest.raises(BadStream, match="gone"):
        stream.feed(lines(content("y"), {"error": "gone"}, content("z")), 2.0)


def events(*items):
    lines = [b"data: " + (item.encode() if isinstance(item, str) else json.dumps(item).encode()) for item in items]
    return b"\n\n".join(lines) + b"\n\n"


def delta(reason=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


COMPLETION = events(
    delta(role="assistant", content=""),
    delta(content="Hola, 'data: {' is text"),
    delta(content=" y más"),
    delta("length"),
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 31}},
    "[DONE]",
)


@given(st.lists(st.integers(0, 900)))
def test_server_sent_events_are_the_same_however_the_segments_fall(positions):
    edges = [0, *sorted(position % len(COMPLETION) for position in positions), len(COMPLETION)]
    stream = SseStream(keep=True)
    for moment, (a, b) in enumerate(itertools.pairwise(edges)):
        if b > a:
            stream.feed(COMPLETION[a:b], float(moment))
    final = stream.finish(99.0)
    assert final is not None
    assert (final.prompt_tokens, final.output_tokens, final.done_reason) == (9, 31, "length")
    assert stream.chunks == 5
    assert stream.text() == "Hola, 'data: {' is text y más"


def test_reasoning_is_a_token_but_not_a_visible_one():
    stream = SseStream()
    for moment, item in enumerate([delta(content=""), delta(reasoning_content="hm"), delta(content="x")]):
        stream.feed(events(item), float(moment))
    assert (stream.first_token_s, stream.first_visible_s) == (1.0, 2.0)


def test_events_without_a_finish_reason_are_truncated():
    stream = SseStream()
    stream.feed(events(delta(content="x")), 1.0)
    assert stream.finish(2.0) is None


def test_an_error_event_has_its_message():
    with pytest.raises(BadStream, match=r"^no memory$") as caught:
        SseStream().feed(events({"error": {"message": "no memory", "code": 500}}), 1.0)
    assert caught.value.failure == Failure.STREAM


def test_llama_servers_timings_are_the_durations():
    stream = SseStream()
    stream.feed(events(delta("stop") | {"timings": {"prompt_ms": 120.0, "predicted_ms": 2500.0}}), 1.0)
    assert (stream.final().prompt_eval_s, stream.final().eval_s) == pytest.approx((0.12, 2.5))
