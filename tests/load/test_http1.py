"""Reading an HTTP/1.1 response, fed in every possible way."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployctl.load.http1 import BadHttp, ResponseReader

# RFC 9112, section 7.1: chunk extensions and trailers are to be understood and ignored.
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Twice: a\r\n\r\n"
    b'7;note="x"\r\nHello, \r\n6\r\nworld\n\r\nA\r\n0123456789\r\n0\r\nTrailer: yes\r\n\r\n'
)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, world\n"


def cut(data, positions):
    edges = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if b > a]


@given(st.lists(st.integers(0, 500)))
def test_a_chunked_body_is_the_same_however_the_segments_fall(positions):
    reader = ResponseReader()
    body = b"".join(reader.feed(part) for part in cut(CHUNKED, positions))
    assert body == b"Hello, world\n0123456789"
    assert reader.complete
    assert reader.reusable


@given(st.lists(st.integers(0, 500)))
def test_a_body_of_known_length_is_the_same_however_the_segments_fall(positions):
    reader = ResponseReader()
    assert b"".join(reader.feed(part) for part in cut(PLAIN, positions)) == b"Hello, world\n"
    assert reader.complete


def test_interim_responses_are_skipped():
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN) == b"Hello, world\n"
    assert reader.status == 200


def test_a_body_without_length_ends_with_the_connection_which_is_then_gone():
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc"
    assert not reader.complete
    assert reader.eof()
    assert not reader.reusable


def test_a_chunked_body_that_stops_early_is_not_whole():
    reader = ResponseReader()
    reader.feed(CHUNKED[:-10])
    assert not reader.eof()


def test_connection_close_and_surplus_bytes_forbid_another_request():
    closing = ResponseReader()
    closing.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx")
    surplus = ResponseReader()
    surplus.feed(PLAIN + b"HTTP/1.1 200 OK\r\n")
    old = ResponseReader()
    old.feed(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx")
    assert [one.complete for one in (closing, surplus, old)] == [True] * 3
    assert not any(one.reusable for one in (closing, surplus, old))


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused(data):
    with pytest.raises(BadHttp):
        ResponseReader().feed(data)
