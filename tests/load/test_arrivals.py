"""Arrivals of an open loop, and logs of arrivals."""

from itertools import islice, repeat

import numpy as np
import pytest

from deployctl.errors import UsageError
from deployctl.load.arrivals import offsets, read_log, replayed
from deployctl.load.script import Draw

DRAW = Draw(1.0, 40, 24, 5, 6)


def test_constant_arrivals_are_evenly_spaced():
    assert list(islice(offsets("constant", 4.0, np.random.default_rng(0)), 5)) == [0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_arrivals_have_exponential_gaps_of_the_right_mean():
    starts = np.array(list(islice(offsets("poisson", 5.0, np.random.default_rng(1)), 20_000)))
    gaps = np.diff(starts)
    # An exponential law has its mean as its standard deviation; 20,000 gaps fix both within some 2 %.
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.03)
    assert (gaps > 0).all()


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(UsageError, match="rate"):
        next(offsets("poisson", 0.0, np.random.default_rng(1)))


def test_a_log_is_replayed_from_its_first_line_at_the_wanted_speed(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"arrival_s": 100.0, "prompt_tokens": 50, "output_tokens": 10}\n\n'
        '{"arrival_s": 103.0, "prompt": "¿Qué hora es?", "output_tokens": 7, "tenant": "ignored"}\n',
        encoding="utf-8",
    )
    first, second = replayed(read_log(log), repeat(DRAW), speed=2.0)
    assert (first.at_s, first.text, first.draw.prompt_tokens, first.draw.output_tokens) == (0.0, None, 50, 10)
    assert (second.at_s, second.text, second.draw.output_tokens) == (1.5, "¿Qué hora es?", 7)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"arrival_s": 5, "output_tokens": 3}', "'prompt_tokens' is missing"),
        ('{"arrival_s": 5, "prompt": "", "output_tokens": 3}', "'prompt' is not a text"),
        ('{"arrival_s": 5, "prompt_tokens": 3, "output_tokens": 0}', "'output_tokens' is 0"),
        ('{"arrival_s": 5, "prompt_tokens": 3.5, "output_tokens": 1}', "'prompt_tokens' is 3.5"),
        ('{"arrival_s": "5", "prompt_tokens": 3, "output_tokens": 1}', "'arrival_s' is \"5\""),
        ('{"arrival_s": NaN, "prompt_tokens": 3, "output_tokens": 1}', "'arrival_s' is NaN"),
        ('{"arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 1}', "arrives at 0.5 s, before the line above it"),
    ],
)
def test_a_bad_line_of_a_log_is_named(tmp_path, line, why):
    log = tmp_path / "log.jsonl"
    log.write_text('{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 1}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_log(log)
    assert f"log.jsonl:2: {why}" in caught.value.message


def test_a_log_that_cannot_be_read_or_is_empty_is_named(tmp_path):
    with pytest.raises(UsageError, match="no-such"):
        read_log(tmp_path / "no-such.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="holds no request"):
        read_log(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "a\xf1o"}')
    with pytest.raises(UsageError, match="cannot be read"):
        read_log(tmp_path / "latin.jsonl")


def test_the_example_log_is_one(root):
    log = read_log(root / "loadtests" / "replay.example.jsonl")
    assert len(log) >= 20
    assert log[0].at_s == 0
    assert any(one.text for one in log)
    assert any(one.prompt_tokens for one in log)
