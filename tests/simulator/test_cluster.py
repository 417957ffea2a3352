from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deployctl.simulator.cluster import Balancing, Cluster
from deployctl.simulator.scenario import Scenario
from deployctl.simulator.virtual import closed_loop

Make = Callable[..., Scenario]
LENGTHS = {
    "prompt_tokens": {"dist": "lognormal", "mean": 30, "cv": 1},
    "output_tokens": {"dist": "lognormal", "mean": 12, "cv": 1},
    "think_s": {"dist": "exponential", "mean": 4},
}


@pytest.mark.parametrize("balancing", ["round-robin", "least-connections"])
@pytest.mark.parametrize(
    "server", [{}, {"speed_noise": {"cv": 0.3, "tau_s": 20}}, {"queue_limit": 1}], ids=["plain", "noisy", "limited"]
)
def test_a_cluster_of_one_host_is_that_host(
    make_scenario: Make, server: dict[str, object], balancing: Balancing
) -> None:
    scenario = make_scenario(workload=LENGTHS, **server)
    cluster = Cluster(scenario, 5, np.random.SeedSequence(3), 1, balancing)
    alone = closed_loop(scenario, 5, np.random.SeedSequence(3))
    cluster.advance(900)
    alone.advance(900)
    one, other = cluster.requests(), alone.requests()
    assert len(one) > 300
    assert np.array_equal(one.user, other.user)
    assert np.array_equal(one.ok, other.ok)
    assert one.ttft_s == pytest.approx(other.ttft_s, abs=1e-6)
    assert one.e2e_s == pytest.approx(other.e2e_s, abs=1e-6)
    assert cluster.waits_s() == pytest.approx(alone.waits_s(), abs=1e-6, nan_ok=True)
    assert cluster.pending()[0] == pytest.approx(alone.pending()[0], abs=1e-6)


def in_step(make_scenario: Make, hosts: int, balancing: Balancing, users: int) -> Cluster:
    # All users send at 20 s and, on a host of their own, are answered in the same time.
    cluster = Cluster(make_scenario(), users, np.random.SeedSequence(1), hosts, balancing)
    cluster.advance(30)
    return cluster


@pytest.mark.parametrize("balancing", ["round-robin", "least-connections"])
def test_requests_that_come_together_are_spread_evenly(make_scenario: Make, balancing: Balancing) -> None:
    # Four requests, four hosts: each is alone, so 20/100 + 20/10 = 2.2 s (two on one host would take 2.9 s).
    assert in_step(make_scenario, 4, balancing, 4).requests().e2e_s == pytest.approx([2.2] * 4)


def test_least_connections_goes_where_fewest_are_open_and_round_robin_does_not_look(make_scenario: Make) -> None:
    # Two hosts; user 0 sends at 1 s an answer of 100 s, users 1 and 2 short ones at 2 and 3 s.
    lengths = {
        "prompt_tokens": {"dist": "constant", "mean": 1},
        "output_tokens": {"dist": "empirical", "values": [1]},
        "think_s": {"dist": "constant", "mean": 50},
    }
    scenario = make_scenario(workload=lengths)
    shown = {}
    for balancing in ("round-robin", "least-connections"):
        cluster = Cluster(scenario, 3, np.random.SeedSequence(1), 2, balancing)
        cluster._output[0] = 1000  # the first request of user 0 is the long one
        cluster._thinking = [(1.0, 0), (2.0, 1), (3.0, 2)]
        cluster.advance(3.5)
        shown[balancing] = cluster.requests().ttft_s
    # Alone: 0.01 + 0.1. Beside the long one: 1/50 + 1/8.
    assert shown["least-connections"] == pytest.approx([0.11, 0.11])
    assert shown["round-robin"] == pytest.approx([0.11, 0.145])


def test_least_connections_beats_round_robin_below_overload(reference: Scenario) -> None:
    waits = {}
    for balancing in ("round-robin", "least-connections"):
        cluster = Cluster(reference, 100, np.random.SeedSequence(1), 10, balancing)
        cluster.advance(2000)
        waits[balancing] = cluster.waits_s().mean()
    assert waits["least-connections"] < 0.5 * waits["round-robin"]


def test_the_same_seed_gives_the_same_cluster(reference: Scenario) -> None:
    runs = []
    for _ in range(2):
        cluster = Cluster(reference, 30, np.random.SeedSequence(1), 3, "least-connections")
        cluster.advance(500)
        runs.append(cluster.requests().e2e_s)
    assert np.array_equal(*runs)
