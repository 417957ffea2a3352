"""`deployctl advise --lang es` says nothing in English, whatever the answer."""

import re
from pathlib import Path

import pytest

from deployctl.cli.app import main

# Words that an English sentence of the advice cannot do without, and that are no Spanish ones.
ENGLISH = re.compile(
    r"\b(?:the|of|for|with|and|on|is|are|to|each|every|about|between|at|most|answers?|users?|speed|memory|weights|needs|has"
    r"|fits?|best|only|more|less|this|that|which|than|from|by|would|cost|month|wants|try|reads?|part|measured?|estimated"
    r"|reserve|runtime|buffers|available|where|come|figures|all)\b",
    re.IGNORECASE,
)
# What is quoted and never translated: names, options, file names.
QUOTED = re.compile(
    r"--[a-z-]+|[\w./-]+\.(?:yml|json|com|sizing|ai)\S*|deployctl\S*|\b\S+:\S+|[a-z]+-[a-z0-9-]+|huggingface\S*"
)

CASES = [
    ["--plan", "cpu-32gb", "--model", "llama3.1:8b"],
    ["--plan", "cpu-32gb", "--model", "llama3.1:8b", "--users", "500"],
    ["--plan", "cpu-64gb", "--model", "llama3.1:70b"],
    ["--plan", "cpu-8gb", "--model", "llama3.1:70b"],
    ["--plan", "cpu-16gb", "--model", "gemma3:4b", "--users", "5"],
    ["--plan", "cpu-32gb", "--model", "llama3.1:8b", "--slots", "128"],
    ["--plan", "cpu-32gb", "--model", "llama3.1:8b", "--context", "4096", "--variant", "q4_K_M", "--kv-type", "q8_0"],
    ["--plan", "gpu-rtx4090", "--model", "llama3.1:70b"],
    ["--plan", "gpu-h100", "--model", "llama3.2:1b", "--users", "4"],
    ["--plan", "gpu-l4", "--model", "gpt-oss:20b"],
    ["--users", "20", "--slo", "chat", "--model", "llama3.1:8b"],
]


@pytest.mark.parametrize("words", CASES, ids=[" ".join(case) for case in CASES])
def test_no_english_word_remains(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["advise", *words, "--lang", "es", "--explain", "--offline", "--data-dir", str(tmp_path)])
    assert ended.value.code in (0, 1)
    said = capsys.readouterr().out
    assert said
    assert ENGLISH.findall(QUOTED.sub(" ", said)) == [], said
