"""What is asked: lengths, unique prefixes, turns, and the bodies that carry them."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from deployctl.load.dialogue import Dialogue, Texts
from deployctl.load.prompts import PromptBank, unique_prefix
from deployctl.load.script import Draw, draws, first_think_s, generator
from deployctl.load.spec import LoadSpec

PROMPTS = Path(__file__).parents[2] / "loadtests" / "prompts"


@pytest.fixture
def spec(make_workload, tmp_path):
    def make(protocol="ollama", **changes):
        return LoadSpec("http://x:1", "m:1b", make_workload(**changes), PROMPTS, nonce="n", protocol=protocol)

    return make


def test_no_two_prompts_share_a_prefix(spec):
    texts = Texts(spec())
    first_words = {
        texts.user_text(Draw(0, 40, 9, pick, 1), user, seq).split(":")[0]
        for pick, (user, seq) in enumerate((u, s) for u in range(40) for s in range(25))
    }
    assert len(first_words) == 1000
    assert unique_prefix("run 1", 3, 4) != unique_prefix("run 2", 3, 4), "nor do two runs with the same seed"


@pytest.mark.parametrize("language", ["en", "es"])
@pytest.mark.parametrize("tokens", [1, 10, 40, 300, 5000])
def test_a_prompt_has_about_the_asked_number_of_words(language, tokens):
    bank = PromptBank.read(PROMPTS, language, tokens_per_word=1.0)
    assert len(bank.text(tokens, 12345).split()) == max(1, tokens)


def test_a_project_may_calibrate_its_own_tokenizer():
    words = [len(PromptBank.read(PROMPTS, "en", rate).text(600, 7).split()) for rate in (1.0, 2.0)]
    assert words == [600, 300]


def test_the_body_asks_for_the_drawn_length_without_thinking_and_without_what_reloads_a_model(spec):
    dialogue = Dialogue(Texts(spec()))
    dialogue.begin(1)
    body = json.loads(dialogue.body(Draw(0, 40, 77, 1, 99), 0, 0))
    assert body["model"] == "m:1b"
    assert body["think"] is False
    assert body["stream"] is True
    assert body["options"] == {"num_predict": 77, "seed": 99, "temperature": 0.3}
    assert [message["role"] for message in body["messages"]] == ["user"]


def test_generate_has_a_prompt_and_completions_have_max_tokens(spec):
    generate = Dialogue(Texts(spec(api="generate")))
    generate.begin(1)
    assert "messages" not in (body := json.loads(generate.body(Draw(0, 40, 7, 1, 9), 0, 0)))
    assert body["prompt"]
    completions = Dialogue(Texts(spec(protocol="openai")))
    completions.begin(1)
    body = json.loads(completions.body(Draw(0, 40, 7, 1, 9), 0, 0))
    assert body["max_tokens"] == 7
    assert body["stream_options"] == {"include_usage": True}


def test_turns_send_the_whole_conversation_and_a_warm_workload_shares_its_beginning(spec):
    texts = Texts(spec(warm=True, turns=3))
    bodies = []
    for user in (1, 2):
        dialogue = Dialogue(texts)
        dialogue.begin(3)
        for seq in range(3):
            assert not dialogue.over
            bodies.append(json.loads(dialogue.body(Draw(0, 40, 7, 5, 9), user, seq))["messages"])
            dialogue.answered(f"answer {seq}")
        assert dialogue.over
    assert [len(messages) for messages in bodies] == [2, 4, 6, 2, 4, 6]
    assert bodies[2][:4] == bodies[1]
    assert [message["role"] for message in bodies[2]] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert bodies[1][2]["content"] == "answer 0"
    assert bodies[0] == bodies[3], "the same prompt from two users may be cached: that is what warm means"


def test_a_failed_turn_ends_the_conversation(spec):
    dialogue = Dialogue(Texts(spec(turns=3)))
    dialogue.begin(3)
    dialogue.body(Draw(0, 40, 7, 5, 9), 0, 0)
    dialogue.answered(None)
    assert dialogue.over


def test_a_users_requests_depend_on_the_seed_and_on_the_user_alone(make_workload):
    varied = make_workload(
        prompt_tokens={"dist": "lognormal", "mean": 70, "cv": 1}, think_s={"dist": "exponential", "mean": 3}
    )

    def of(seed, user):
        return list(islice(draws(varied, generator(seed, user)), 40))

    assert of(1, 2) == of(1, 2)
    assert of(1, 2) != of(1, 3)
    assert of(1, 2) != of(2, 2)


def test_first_think_times_are_the_rest_of_one_that_has_begun(make_workload):
    """Renewal theory: a residual life has the mean E[Z^2] / (2 E[Z]): Z/2 for a constant Z, Z for an exponential."""
    constant = make_workload(think_s=4)
    found = [first_think_s(constant, generator(1, user)) for user in range(3000)]
    assert np.mean(found) == pytest.approx(2.0, rel=0.05)
    assert np.quantile(found, [0.25, 0.75]) == pytest.approx([1, 3], rel=0.1)
    exponential = make_workload(think_s={"dist": "exponential", "mean": 4})
    found = [first_think_s(exponential, generator(1, user)) for user in range(3000)]
    assert np.mean(found) == pytest.approx(4.0, rel=0.1)
    assert first_think_s(make_workload(think_s=0), generator(1, 1)) == 0


def test_a_spec_survives_its_file(spec, tmp_path):
    original = spec(
        output_tokens={"dist": "uniform", "min": 2, "max": 5}, turns={"dist": "uniform", "min": 1, "max": 3}
    )
    original.write(tmp_path / "load.json")
    assert LoadSpec.read(tmp_path / "load.json") == original
