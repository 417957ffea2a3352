import pytest

from deployctl.catalog.workloads import Workload


def workload(**changes: object) -> Workload:
    body = {"name": "w", "title": "w", "prompt_tokens": 100, "output_tokens": 50, "think_s": 1}
    return Workload.model_validate(body | changes)


def test_a_bare_number_is_a_constant() -> None:
    assert workload().prompt_tokens.dist == "constant"
    assert workload(think_s=0).think_s.expected() == 0


def test_one_turn_of_constant_lengths_holds_their_sum() -> None:
    assert workload().tokens_at(0.99) == 150


def test_a_conversation_of_three_turns_holds_three_times_the_tokens() -> None:
    assert workload(turns=3).tokens_at(0.99) == 450


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_the_tokens_at_a_quantile_add_the_quantiles_of_prompt_and_answer(p: float) -> None:
    chat = workload(prompt_tokens={"dist": "lognormal", "mean": 70, "cv": 1.5})
    assert chat.tokens_at(p) >= round(chat.prompt_tokens.quantile(p) + 50) or p < 0.6
