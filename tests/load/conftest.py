"""Servers and helpers for the load generator's tests."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from deployctl.catalog.workloads import Workload
from deployctl.load.connection import Address, Connection
from deployctl.load.driver import LocustDriver
from deployctl.load.exchange import Exchange
from deployctl.load.outcome import to_sample
from deployctl.load.samples import Sample
from deployctl.load.streams import NdjsonStream


@contextmanager
def running(**environment: str) -> Iterator[str]:
    script = Path(__file__).with_name("fake_server.py")
    argv = [sys.executable, str(script)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.communicate()


@pytest.fixture(scope="session")
def fake() -> Iterator[str]:
    """The URL of a server that does what the model's name says."""
    with running() as url:
        yield url


@pytest.fixture
def fake_with() -> Callable[..., Any]:
    """A context manager that starts a server of one's own, with environment variables."""
    return running


@pytest.fixture
def ask(fake: str) -> Iterator[Callable[..., Sample]]:
    """Make one request with the plain-socket client; the connection stays for the next one."""
    connection = Connection(Address.parse(fake))

    def request(model: str, *, timeout_s: float = 5.0, tokens: int = 5, url: str | None = None) -> Sample:
        address = Address.parse(url or fake)
        body = f'{{"model":"{model}","options":{{"num_predict":{tokens}}}}}'.encode()
        exchange = Exchange(NdjsonStream())
        begin = monotonic()
        used = connection if url is None else Connection(address)
        used.run(address.request("/api/chat", body), exchange, begin + timeout_s)
        if used is not connection:
            used.close()
        return to_sample(exchange, user=0, seq=0, intended_s=begin, sent_s=begin, asked_tokens=tokens)

    yield request
    connection.close()


def workload(**changes: Any) -> Workload:
    values = {"name": "t", "title": "t", "prompt_tokens": 40, "output_tokens": 12, "think_s": 0.1, "timeout_s": 5}
    return Workload.model_validate(values | changes)


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    return workload


@pytest.fixture
def driving(fake: str, tmp_path: Path) -> Callable[..., LocustDriver]:
    """Make a driver against the fake server; ``model`` is what the server shall do."""

    def make(
        model: str = "plain",
        *,
        url: str = fake,
        seed: int = 1,
        protocol: str = "ollama",
        workers: int = 0,
        log: Path | None = None,
        speed: float = 1.0,
        **changes: Any,
    ) -> LocustDriver:
        out_dir = tmp_path / "load"
        return LocustDriver(
            url,
            model,
            workload(**changes),
            out_dir=out_dir,
            seed=seed,
            nonce="test",
            protocol=protocol,
            workers=workers,
            log=log,
            speed=speed,
        )

    return make
