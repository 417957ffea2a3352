"""deployctl test: what it refuses before anything is contacted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LINE = '{"arrival_s": 1, "prompt_tokens": 4, "output_tokens": 4}'


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "fast"], "--rate fast: not a number of requests per second"),
        (["--rate", "0"], "--rate 0: not a number"),
        (["--rate", "2", "--arrivals", "bursts"], "--arrivals bursts: not one of poisson, constant"),
        (["--arrivals", "constant"], "--arrivals needs --rate"),
        (["--speed", "2"], "--replay and --speed need a workload that is a log"),
        (["--rate", "2", "--replay", "log.jsonl"], "--rate and --replay exclude each other"),
        (["--rate", "2", "--workload", "replay"], "--rate excludes a log"),
        (["--replay", "log.jsonl"], "log.jsonl:2: 'output_tokens' is missing"),
        (["--protocol", "grpc"], "--protocol grpc: not one of ollama, openai"),
        (["--loadgen", "all"], "marks no host as a load generator"),
    ],
)
def test_an_open_loop_that_cannot_be_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{LINE}\n{{"arrival_s": 2, "prompt_tokens": 4}}\n')
    argv = [sys.executable, "-m", "deployctl", "--json", "--data-dir", "data", "test", "--model", "m:1"]
    done = subprocess.run(
        [*argv, "--url", "http://127.0.0.1:9", *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert said in json.loads(done.stdout)["error"]["message"]
    assert not (tmp_path / "data" / "open-loop").exists()
