"""Measuring the way to a server with requests that ask for nothing."""

import socket
import threading
from time import sleep

import pytest

from deployctl.errors import HostUnreachable
from deployctl.load.roundtrip import round_trip


def relay(port, delay_s):
    """A way to the server that holds each packet for ``delay_s``; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source, target):
        with source, target:
            while data := source.recv(65536):
                sleep(delay_s)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept():
        with listener:
            near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        back = threading.Thread(target=pump, args=(far.dup(), near.dup()), daemon=True)
        back.start()
        pump(near, far)
        back.join()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


def test_a_way_that_holds_packets_for_20_ms_each_way_adds_40_ms(fake):
    port = int(fake.rsplit(":", 1)[1])
    way, thread = relay(port, 0.02)
    around = round_trip(fake, requests=5, path="/api/ps")
    through = round_trip(f"http://127.0.0.1:{way}", requests=5, path="/api/ps")
    thread.join(5)
    assert through.p50_s - around.p50_s >= 0.035
    assert through.max_s >= through.p50_s


def test_a_server_that_is_not_there_is_unreachable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(HostUnreachable):
            round_trip(f"http://127.0.0.1:{unused.getsockname()[1]}")
