"""The client on plain sockets against a server that misbehaves."""

import math
import socket
from time import sleep

import pytest

from deployctl.load.samples import Failure


@pytest.mark.parametrize("per_chunk", [1, 2, 3, 7, 16])
def test_tokens_are_the_servers_count_however_many_share_a_chunk(ask, per_chunk):
    sample = ask(f"plain:{per_chunk}", tokens=32)
    assert sample.ok
    assert sample.output_tokens == 32
    assert sample.chunks == math.ceil(32 / per_chunk) + 1  # and the final frame
    assert sample.prompt_tokens == 33
    assert sample.done_reason == "length"


def test_server_durations_arrive_in_seconds(ask):
    sample = ask("plain")
    assert (sample.total_s, sample.load_s, sample.prompt_eval_s, sample.eval_s) == pytest.approx((9, 1, 2, 5))
    assert sample.queue_s == pytest.approx(1)


def test_a_chunk_split_inside_a_utf8_sequence_is_one_line(ask):
    sample = ask("split-utf8")
    assert sample.ok
    assert sample.chunks == 2
    assert sample.received_bytes > 0


def test_two_chunks_in_one_segment_and_two_lines_in_one_chunk_are_counted_apart(ask):
    sample = ask("two-in-one")
    assert sample.ok
    assert sample.chunks == 5


def test_thinking_is_the_first_token_and_the_answer_the_first_visible_one(ask):
    sample = ask("thinking")
    assert sample.ok
    # The server pauses 50 ms before the first thought and 4 times 20 ms before the answer.
    assert sample.ttft_s >= 0.05
    assert sample.first_visible_s - sample.first_token_s >= 0.08
    assert sample.tpot_s == pytest.approx((sample.end_s - sample.first_token_s) / 5)


@pytest.mark.parametrize(
    ("model", "failure"),
    [
        ("no-final", Failure.TRUNCATED),
        ("cut-off", Failure.TRUNCATED),
        ("error-midway", Failure.STREAM),
        ("status:503", Failure.STATUS),
        ("reset", Failure.RESET),
        ("reset:midway", Failure.RESET),
        ("gzip", Failure.ENCODING),
        ("redirect", Failure.REDIRECT),
        ("bad-utf8", Failure.BAD_UTF8),
        ("bad-json", Failure.BAD_JSON),
        ("not-http", Failure.BAD_HTTP),
    ],
)
def test_what_is_not_a_final_frame_is_a_failure_with_its_class(ask, model, failure):
    sample = ask(model)
    assert sample.error == failure
    assert sample.ttft_s == sample.e2e_s == sample.tpot_s == math.inf
    assert not math.isnan(sample.end_s)
    assert ask("plain").ok, "the next request works"


def test_an_error_in_mid_stream_keeps_its_text(ask):
    sample = ask("error-midway")
    assert sample.status == 200
    assert "CUDA error" in sample.message


def test_a_full_queue_keeps_status_and_text(ask):
    sample = ask("status:503")
    assert sample.status == 503
    assert sample.message == "server busy, please try again.  maximum pending requests exceeded"


def test_retry_after_is_recorded(ask):
    sample = ask("status:429")
    assert sample.status == 429
    assert sample.retry_after_s == 7


def test_a_refused_connection_is_recorded(ask):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        sample = ask("plain", url=f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert sample.error == Failure.REFUSED
    assert sample.status == 0


def test_a_name_that_does_not_resolve_is_unreachable(ask):
    assert ask("plain", url="http://no-such-host.invalid:1").error == Failure.UNREACHABLE


def test_a_server_slower_than_the_timeout_is_a_timeout_at_that_moment(ask):
    sample = ask("slow:2", timeout_s=0.3)
    assert sample.error == Failure.TIMEOUT
    assert sample.end_s - sample.intended_s >= 0.3


def test_a_body_of_known_length_needs_no_chunks(ask):
    sample = ask("identity")
    assert sample.ok
    assert (sample.output_tokens, sample.chunks) == (2, 3)


def test_a_body_that_ends_with_the_connection_is_whole(ask):
    sample = ask("until-close")
    assert sample.ok
    assert sample.output_tokens == 1
    assert ask("plain").ok


def test_a_connection_that_the_server_closed_while_idle_is_replaced(ask):
    for _ in range(3):
        assert ask("forget").ok
        sleep(0.2)
