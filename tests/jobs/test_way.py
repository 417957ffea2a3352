"""The way to a server, through a tunnel and around it, over a real SSH server."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep

import pytest
from loopback.sshd import Sshd

from deployctl.hosts.ssh import connect
from deployctl.hosts.tunnel import open_tunnel
from deployctl.jobs.way import measure_way

DELAY_S = 0.02


@pytest.fixture
def port() -> Iterator[int]:
    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = json.dumps({"version": self.path}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def slow_way(port: int) -> int:
    """A relay to ``port`` that holds each packet for 20 ms; it serves one connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with source, target:
            while data := source.recv(65536):
                sleep(DELAY_S)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with listener:
            near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=pump, args=(far.dup(), near.dup()), daemon=True).start()
        pump(near, far)

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])


def test_what_the_way_adds_is_what_is_not_there_on_the_host(sshd: Sshd, port: int) -> None:
    with connect(sshd.target(), "refuse") as session, open_tunnel(sshd.target(), port) as tunnel:
        assert tunnel.remote_port == port
        way = measure_way(tunnel.url, "ollama", session, tunnel.remote_port)
        assert way.around_s is not None
        assert 0 < way.around_s < 1
        slow = measure_way(f"http://127.0.0.1:{slow_way(tunnel.port)}", "openai", session, port)
        assert slow.added_s is not None
        assert slow.added_s >= 1.8 * DELAY_S
        gone = measure_way(tunnel.url, "ollama", session, 1)
        assert (gone.around_s, gone.added_s) == (None, None)
    assert measure_way(f"http://127.0.0.1:{port}", "ollama").added_s is None
