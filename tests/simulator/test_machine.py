from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deployctl.simulator.machine import Happening, Job, Machine
from deployctl.simulator.scenario import Scenario

Make = Callable[..., Scenario]


def machine(scenario: Scenario) -> Machine:
    return Machine(scenario.server, np.random.default_rng(1))


def arrive(model: Machine, prompt: float, output: int, at_s: float) -> Job:
    model.advance(at_s)
    job = Job(prompt, output)
    assert model.arrive(job) is not None
    return job


def finish(model: Machine) -> list[Happening]:
    happened: list[Happening] = []
    while (due := model.next_s()) < float("inf"):
        happened += model.advance(due)
    return happened


def test_a_request_alone_takes_prompt_over_prefill_plus_tokens_over_decode(make_scenario: Make) -> None:
    model = machine(make_scenario())
    job = arrive(model, 50, 20, 3.0)
    finish(model)
    assert job.prefilled_s == pytest.approx(3.5)  # 50 / 100
    assert job.first_s == pytest.approx(3.6)  # + 1 / 10
    assert job.ended_s == pytest.approx(5.5)  # + 20 / 10


def test_two_requests_share_each_phase_and_speed_up_when_one_leaves(make_scenario: Make) -> None:
    model = machine(make_scenario())
    short, long = arrive(model, 50, 8, 0.0), arrive(model, 50, 16, 0.0)
    finish(model)
    # Two in prefill: 50 tokens/s each, until 1.0. Two in decode: 8 tokens/s each, so the short one ends at 2.0;
    # the long one's other 8 tokens come at 10 tokens/s.
    assert short.prefilled_s == pytest.approx(1.0)
    assert short.ended_s == pytest.approx(2.0)
    assert long.ended_s == pytest.approx(2.8)


def test_a_newcomer_slows_a_running_decode_from_its_arrival_on(make_scenario: Make) -> None:
    model = machine(make_scenario())
    early = arrive(model, 0, 20, 0.0)
    late = arrive(model, 100, 1, 1.0)
    finish(model)
    # 10 tokens by 1.0; then 8/s: the other 10 by 2.25. The newcomer has 62.5 of its 100 by then (50/s), then 100/s.
    assert early.ended_s == pytest.approx(2.25)
    assert late.prefilled_s == pytest.approx(2.25 + 0.375)
    assert late.ended_s == pytest.approx(2.25 + 0.375 + 0.1)


def test_the_third_request_waits_its_turn_for_one_of_two_slots(make_scenario: Make) -> None:
    model = machine(make_scenario())
    first, second, third, fourth = (arrive(model, 0, tokens, 0.0) for tokens in (8, 16, 8, 8))
    assert [len(model.waiting), model.active] == [2, 2]
    finish(model)
    assert third.started_s == pytest.approx(first.ended_s) == pytest.approx(1.0)
    assert fourth.started_s == pytest.approx(second.ended_s) == pytest.approx(2.0)


def test_a_full_queue_refuses_and_an_unlimited_one_never_does(make_scenario: Make) -> None:
    model = machine(make_scenario(queue_limit=1))
    for _ in range(3):
        arrive(model, 10, 10, 0.0)
    assert model.arrive(Job(10, 10)) is None
    open_model = machine(make_scenario())
    for _ in range(500):
        arrive(open_model, 10, 10, 0.0)
    assert len(open_model.waiting) == 498


def test_a_queue_limit_of_zero_lets_nobody_wait(make_scenario: Make) -> None:
    model = machine(make_scenario(queue_limit=0))
    arrive(model, 10, 10, 0.0)
    arrive(model, 10, 10, 0.0)
    assert model.arrive(Job(10, 10)) is None


def test_above_the_cliff_everything_is_slower(make_scenario: Make) -> None:
    model = machine(make_scenario(cliff_above=1, cliff_factor=0.5))
    first, _ = arrive(model, 50, 8, 0.0), arrive(model, 50, 8, 0.0)
    finish(model)
    assert first.prefilled_s == pytest.approx(2.0)
    assert first.ended_s == pytest.approx(4.0)


def test_a_stall_stops_the_clock_for_all(make_scenario: Make) -> None:
    model = machine(make_scenario(stalls=[{"at_s": 0.25, "for_s": 10}]))
    job = arrive(model, 50, 10, 0.0)
    finish(model)
    assert job.prefilled_s == pytest.approx(10.5)
    assert job.ended_s == pytest.approx(11.5)


def test_chunks_hold_the_first_token_alone_and_then_as_many_as_coalesced(make_scenario: Make) -> None:
    model = machine(make_scenario(coalesce=4))
    arrive(model, 0, 10, 0.0)
    chunks = [(event.tokens, event.at_s) for event in finish(model) if event.tokens]
    assert [tokens for tokens, _ in chunks] == [1, 4, 4, 1]
    assert [at for _, at in chunks] == pytest.approx([0.1, 0.5, 0.9, 1.0])


def test_whoever_looks_late_is_told_of_every_chunk_and_its_place(make_scenario: Make) -> None:
    model = machine(make_scenario(coalesce=4))
    arrive(model, 0, 10, 0.0)
    late = [(event.first, event.tokens) for event in model.advance(100.0) if event.tokens]
    assert late == [(0, 1), (1, 4), (5, 4), (9, 1)]


def test_a_client_that_leaves_frees_its_slot_or_its_place_in_the_queue(make_scenario: Make) -> None:
    model = machine(make_scenario())
    running, other, waiting, last = (arrive(model, 0, 8, 0.0) for _ in range(4))
    model.advance(0.5)
    model.cancel(waiting)
    model.cancel(running)
    assert last.started_s == pytest.approx(0.5)
    finish(model)
    assert other.ended_s == pytest.approx(1.0)
    assert np.isnan(running.ended_s)
    assert (model.active, len(model.waiting)) == (0, 0)


def test_coming_late_to_look_changes_no_time(make_scenario: Make) -> None:
    scenario = make_scenario(speed_noise={"cv": 0.3, "tau_s": 3})
    prompt, late = machine(scenario), machine(scenario)
    jobs = [[arrive(model, 30, tokens, 0.0) for tokens in (5, 9, 30, 7)] for model in (prompt, late)]
    finish(prompt)
    late.advance(1000.0)
    assert [job.ended_s for job in jobs[0]] == pytest.approx([job.ended_s for job in jobs[1]])
