"""The façade's HTTP on a raw socket: framing, keep-alive, refusals."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from deployctl.sandbox.model import MODEL

pytestmark = pytest.mark.engine


@pytest.fixture
def connection(engine_url: str) -> Iterator[socket.socket]:
    address = urlsplit(engine_url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        yield connection


def read_answer(connection: socket.socket, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
    """Read one answer: status, headers, body (chunks joined)."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or pytest.fail("closed")
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        while not rest.endswith(b"0\r\n\r\n"):
            rest += connection.recv(65536) or pytest.fail("closed")
        parts, at = [], 0
        while size := int(rest[at : (end := rest.index(b"\r\n", at))], 16):
            parts.append(rest[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        rest = b"".join(parts)
    elif body:
        while len(rest) < int(headers["content-length"]):
            rest += connection.recv(65536) or pytest.fail("closed")
    return int(first.split()[1]), headers, rest


def test_requests_on_one_connection_are_answered_in_turn(connection: socket.socket) -> None:
    one = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    connection.sendall(one)
    assert read_answer(connection)[::2] == (200, b"Ollama is running")
    connection.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read_answer(connection, body=False)[2] == b""
    connection.sendall(one)
    assert read_answer(connection)[0] == 200


def test_a_stream_is_ndjson_in_chunks(connection: socket.socket) -> None:
    body = json.dumps({"model": MODEL.reference, "prompt": "The", "options": {"num_predict": 3, "seed": 1}}).encode()
    connection.sendall(b"POST /api/generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    status, headers, text = read_answer(connection)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["eval_count"] == 3
    assert lines[-1]["response"] == ""


def test_a_body_in_single_bytes_and_odd_chunks_arrives_whole(connection: socket.socket) -> None:
    data = bytes(range(256)) * 5
    digest = hashlib.sha256(data).hexdigest()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = b"POST /api/blobs/sha256:%b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % digest.encode()
    wire = head + b"".join(
        b"%X;x=y\r\n%b\r\n" % (len(data[i : i + 333]), data[i : i + 333]) for i in range(0, 1280, 333)
    )
    for byte in wire + b"0\r\n\r\n":
        connection.send(bytes([byte]))
    assert read_answer(connection)[0] == 201
    connection.sendall(b"HEAD /api/blobs/sha256:%b HTTP/1.1\r\nHost: x\r\n\r\n" % digest.encode())
    assert read_answer(connection, body=False)[0] == 200


def test_an_announced_body_is_asked_for(connection: socket.socket) -> None:
    connection.sendall(b"POST /api/show HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    time.sleep(0.1)
    assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"{}")
    assert read_answer(connection)[::2] == (400, b'{"error": "model is required"}')


@pytest.mark.parametrize(
    ("request_line", "body", "status", "text"),
    [
        ("GET /nowhere", b"", 404, b"404 page not found"),
        ("PUT /api/chat", b"", 405, b"405 method not allowed"),
        ("POST /api/chat", b"", 400, b'{"error": "missing request body"}'),
        ("POST /api/chat", b"{", 400, b"invalid request body"),
        ("POST /api/chat", b"[]", 400, b"expected an object"),
        ("POST /api/chat", b'{"messages": []}', 400, b"model is required"),
        ("HEAD /api/blobs/sha256:" + "0" * 64, b"", 404, b""),
        ("POST /api/blobs/sha256:zz", b"", 400, b"invalid digest format"),
        ("POST /api/blobs/sha256:" + "0" * 64, b"x", 400, b"digest mismatch"),
        ("POST /api/create", b'{"model": "x"}', 400, b"neither 'from' or 'files' was specified"),
        ("POST /api/create", b'{"model": "x", "files": {"a": "sha256:%s"}}' % (b"0" * 64), 400, b"not found"),
        ("POST /api/pull", b'{"model": "nope:1b", "stream": false}', 500, b"pull model manifest: file does not exist"),
    ],
)
def test_refusals_have_ollamas_status_and_words(
    connection: socket.socket, request_line: str, body: bytes, status: int, text: bytes
) -> None:
    connection.sendall(f"{request_line} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = read_answer(connection, body=not request_line.startswith("HEAD"))
    assert answer[0] == status
    assert text in answer[2]


def test_an_upload_that_breaks_off_leaves_nothing(engine_url: str) -> None:
    address = urlsplit(engine_url)
    digest = hashlib.sha256(b"never complete").hexdigest()
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(f"POST /api/blobs/sha256:{digest} HTTP/1.1\r\nContent-Length: 14\r\n\r\nnever".encode())
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(f"HEAD /api/blobs/sha256:{digest} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert read_answer(connection, body=False)[0] == 404
