from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deployctl.capacity.probe import Look, Prober
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.scenario import Scenario

Make = Callable[..., Scenario]


def until(seconds: float, seen: list[Look] | None = None) -> Callable[[Look], bool]:
    def go_on(look: Look) -> bool:
        if seen is not None:
            seen.append(look)
        return look.now_s < seconds

    return go_on


def test_a_probe_stops_when_told_drains_and_bills_both(reference: Scenario) -> None:
    prober = VirtualProber(reference, seed=1)
    seen: list[Look] = []
    run = prober(11, until(600, seen), 1e9)
    assert 600 <= seen[-1].now_s < 620
    assert run.seconds >= seen[-1].now_s
    assert len(run.last.pending_start_s) == 0
    assert prober.host_s == run.seconds
    assert prober.requests == len(run.last.requests)


def test_the_time_limit_holds_even_if_go_on_never_tires(reference: Scenario) -> None:
    prober = VirtualProber(reference, seed=1)
    seen: list[Look] = []
    prober(5, until(1e9, seen), 90.5)
    assert seen[-1].now_s == 90.5


def test_looks_grow_and_never_lose_a_request(reference: Scenario) -> None:
    seen: list[Look] = []
    VirtualProber(reference, seed=1)(11, until(2000, seen), 1e9)
    counts = [len(look.requests) for look in seen]
    assert counts == sorted(counts)
    assert seen[0].now_s == 1.0
    for look in seen:
        assert np.all(look.requests.start_s + np.where(look.requests.ok, look.requests.e2e_s, 0) <= look.now_s + 1e-6)
        assert np.all(look.pending_start_s <= look.now_s)
        assert len(look.pending_start_s) <= look.users


def test_the_hosts_clock_goes_on_from_probe_to_probe(make_scenario: Make) -> None:
    # The stall at 1000 s of the host's clock hits the second probe, and stretches one answer of it by 50 s.
    scenario = make_scenario(
        stalls=[{"at_s": 1000, "for_s": 50}], workload={"think_s": {"dist": "exponential", "mean": 1}}
    )
    prober = VirtualProber(scenario, seed=1)
    first = prober(2, until(600), 600)
    second = prober(2, until(600), 600)
    assert first.last.requests.e2e_s.max() < 10
    assert second.last.requests.e2e_s.max() > 50


def test_steal_trips_the_gate_of_the_probe_that_it_falls_into_and_of_no_other(make_scenario: Make) -> None:
    scenario = make_scenario(steal=[{"from_s": 700, "to_s": 800, "fraction": 0.3}])
    prober: Prober = VirtualProber(scenario, seed=1)
    assert prober(2, until(600), 600).invalid_reasons == ()
    assert prober(2, until(600), 600).invalid_reasons == ("host: CPU steal of 30%",)
    assert prober(2, until(600), 600).invalid_reasons == ()


def test_the_same_seed_repeats_the_probes(reference: Scenario) -> None:
    one, same = (VirtualProber(reference, seed=4)(9, until(500), 500).last.requests for _ in range(2))
    assert np.array_equal(one.e2e_s, same.e2e_s)
