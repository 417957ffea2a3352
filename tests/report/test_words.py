from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from deployctl.records.parts import Capacity, Dist, Slo
from deployctl.records.schema import Record
from deployctl.report import words

Example = Callable[[str], Record]
CHAT = Slo(name="chat", ttft_s=5.0, tpot_s=0.2, attainment=0.95)


def said(**block: Any) -> words.Answer:
    return words.capacity(Capacity(**block), CHAT, "cpu-32gb", "llama3.1:8b")


def test_a_certified_number_is_the_first_line() -> None:
    answer = said(status="certified", certified_users=11, at_most_users=13, confidence=0.95, limited_by="ttft")
    assert answer.headline == "cpu-32gb serves 11 users of llama3.1:8b"
    assert answer.details == (
        "With 95 % confidence, at least 95 % of requests meet the SLO “chat” with 11 users.",
        "12 to 13 users were not decided; 14 users do not meet the SLO “chat”.",
        "What limits one more: time to first token.",
    )


def test_one_user_is_singular() -> None:
    answer = said(status="certified", certified_users=1, at_most_users=1, confidence=0.95)
    assert answer.headline == "cpu-32gb serves 1 user of llama3.1:8b"
    assert answer.details[1] == "2 users do not meet the SLO “chat”."


def test_without_an_upper_bound_none_is_claimed() -> None:
    answer = said(status="certified", certified_users=4, at_most_users=None, confidence=0.9)
    assert answer.details[1] == "How many more it would hold was not found out."


def test_without_a_confidence_none_is_claimed() -> None:
    answer = said(status="certified", certified_users=4, at_most_users=4)
    assert "confidence" in answer.details[0]
    assert "%" not in answer.details[0].split("confidence")[1]
    assert answer.details[0].startswith("Measured: ")


def test_a_search_that_met_no_limit_says_at_least() -> None:
    answer = said(status="at_least", certified_users=64, confidence=0.95)
    assert answer.headline == "cpu-32gb serves at least 64 users of llama3.1:8b"
    assert "more users were not tried" in answer.detail


def test_not_even_one_user_is_bad_news_without_a_number() -> None:
    answer = said(status="not_met", certified_users=0, at_most_users=0, confidence=0.95, limited_by="tpot")
    assert answer.headline == "cpu-32gb does not serve even one user of llama3.1:8b within the SLO “chat”"
    assert answer.tone == "bad"
    assert "time per output token" in answer.detail


@pytest.mark.parametrize("at_most", [None, 0, 7])
def test_an_undecided_run_never_says_that_users_are_served(at_most: int | None) -> None:
    answer = said(status="inconclusive", certified_users=0, at_most_users=at_most)
    assert answer.headline == "Not decided: how many users of llama3.1:8b cpu-32gb serves"
    assert answer.tone == "mixed"
    assert "certified in the time given" in answer.details[0]


@pytest.mark.parametrize("certified", [0, 4])
def test_an_invalid_run_gives_no_number_whatever_its_block_holds(certified: int) -> None:
    answer = said(status="invalid", certified_users=certified, at_most_users=9, confidence=0.95)
    assert answer.headline == "No answer: the measurement of llama3.1:8b on cpu-32gb is invalid"
    assert not re.search(r"\b[49]\b", answer.detail)


def test_an_unknown_limit_is_said_as_it_is() -> None:
    assert words.limit("the link to the host") == "the link to the host"


def test_an_invalid_run_names_its_reasons_once_each(example: Example) -> None:
    assert words.answer(example("invalid")).details[1:] == (
        "CPU steal was 23 % of the probe (limit 5 %).",
        "The client was late: schedule delay p99 412 ms.",
        "CPU steal was 27 % of the probe (limit 5 %).",
    )


def test_the_embedded_engine_is_always_named(example: Example) -> None:
    record = example("embedded")
    assert "not a genuine Ollama" in words.answer(record).detail
    assert any("genuine Ollama" in entry for entry in words.not_proven(record))


def test_a_cancelled_run_says_so(example: Example) -> None:
    assert (
        "The run was cancelled before its end: interrupted before the first probe."
        in words.answer(example("minimal")).details
    )


def test_a_certificate_without_a_passed_probe_is_doubted(example: Example) -> None:
    record = example("certified")
    probes = tuple(probe for probe in record.probes if probe.users != 11)
    answer = words.answer(record.model_copy(update={"probes": probes}))
    assert answer.tone == "mixed"
    assert "no passed probe with 11 users or more" in answer.detail


def test_a_failed_probe_below_the_certified_number_is_a_doubt(example: Example) -> None:
    record = example("certified")
    block = record.capacity.model_copy(update={"certified_users": 14, "at_most_users": 14})
    assert any(
        "a probe with 13 users failed" in doubt for doubt in words.doubts(record.model_copy(update={"capacity": block}))
    )


def test_a_model_that_is_half_on_the_gpu_is_a_doubt(example: Example) -> None:
    record = example("at_least")
    half = record.deployment.model_copy(update={"gpu_share": 0.5})
    assert words.doubts(record) == ()
    assert "only 50 %" in words.doubts(record.model_copy(update={"deployment": half}))[0]


def test_a_sound_record_is_not_doubted(example: Example) -> None:
    assert words.doubts(example("certified")) == ()
    assert words.answer(example("certified")).tone == "good"


@pytest.mark.parametrize(
    ("share", "down", "up"),
    [
        (1.0, "100 %", "100 %"),
        (0.95, "95 %", "95 %"),
        (0.9499, "94.9 %", "95 %"),
        (0.9996, "99.9 %", "100 %"),
        (0.29, "29 %", "29 %"),
        (0.0, "0 %", "0 %"),
        (0.0001, "0 %", "0.1 %"),
    ],
)
def test_a_share_is_rounded_against_the_claim(share: float, down: str, up: str) -> None:
    assert (words.percent(share), words.percent(share, up=True)) == (down, up)


def test_an_interval_is_rounded_outwards() -> None:
    assert words.interval(0.95071, 0.98612) == "95–98.7 %"
    assert words.interval(None, 0.9) == ""


def test_the_slo_is_one_sentence() -> None:
    assert words.slo(CHAT) == (
        "95 % of requests must get: first token within 5 s and at most 200 ms per token after it. "
        "A failed request never does."
    )
    assert words.slo(Slo(attainment=0.9)).startswith("90 % of requests must get: an answer without an error.")


@pytest.mark.parametrize(
    ("dist", "expected"),
    [
        (Dist(dist="lognormal", mean=180, cv=0.8, min=16, max=2000), "180 s on average (lognormal, 16 to 2,000)"),
        (Dist(dist="constant", mean=3), "3 s"),
        (Dist(dist="exponential", mean=20), "20 s on average (exponential)"),
        (Dist(dist="empirical", values=(1, 2, 6)), "3 s on average (empirical)"),
        (Dist(dist="uniform", min=4), "s (uniform, at least 4)"),
    ],
)
def test_distributions_read_like_speech(dist: Dist, expected: str) -> None:
    assert words.distribution(dist, "s") == expected


@pytest.mark.parametrize(
    ("name", "promised", "expected"),
    [
        ("certified", 1, "covers it"),
        ("certified", 12, "was not decided"),
        ("certified", 13, "does not hold that many"),
        ("at_least", 500, "was not decided"),
        ("inconclusive", 1, "was not decided"),
        ("invalid", 1, "says nothing about it"),
    ],
)
def test_a_promise_is_judged_by_what_was_proven(example: Example, name: str, promised: int, expected: str) -> None:
    record = example(name)
    assert record.plan is not None
    promise = record.plan.promises["llama3.1:8b"].model_copy(update={"users": promised})
    plan = record.plan.model_copy(update={"promises": {"llama3.1:8b": promise}})
    assert expected in words.promise(record.model_copy(update={"plan": plan}))


def test_a_promise_under_another_slo_is_not_judged(example: Example) -> None:
    record = example("certified")
    other = record.slo.model_copy(update={"name": "batch"})
    assert "not the one measured here" in words.promise(record.model_copy(update={"slo": other}))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"status": "certified", "certified_users": 11, "at_most_users": 11}, "11"),
        ({"status": "certified", "certified_users": 11, "at_most_users": 13}, "11–13"),
        ({"status": "certified", "certified_users": 11}, "≥ 11"),
        ({"status": "at_least", "certified_users": 64}, "≥ 64"),
        ({"status": "not_met", "certified_users": 0}, "0"),
        ({"status": "inconclusive", "certified_users": 0}, "–"),
        ({"status": "invalid", "certified_users": 3}, "–"),
    ],
)
def test_the_short_form_fits_a_table(block: dict[str, Any], expected: str) -> None:
    assert words.short(Capacity(**block)) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc  d", "a b c d"),
        ("\x1b[2J\x1b]0;x\x07", "\ufffd[2J\ufffd]0;x\ufffd"),
        ("\u202egpj.exe", "\ufffdgpj.exe"),
        ("nul\x00", "nul\ufffd"),
        ("日本語 عربى 🚀", "日本語 عربى 🚀"),
        ("x" * 500, "x" * 399 + "…"),
    ],
)
def test_text_of_a_record_is_shown_on_one_line_without_tricks(text: str, shown: str) -> None:
    assert words.clean(text) == shown
