"""Drift, steal, stalls and cliffs, on simulated hosts that have exactly these."""

from pathlib import Path

import pytest

from deployctl.capacity.result import Budget
from deployctl.capacity.search import search
from deployctl.simulator.bench import baseline_prior
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.scenario import load_scenario

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def searched(name: str, seed: int, budget: Budget | None = None):
    scenario = load_scenario(BENCHMARKS / f"{name}.yml")
    prober = VirtualProber(scenario, seed)
    return search(prober, scenario.slo.to_slo(), baseline_prior(prober), budget or Budget(mode="certify"))


@pytest.mark.parametrize("name", ["drift-fast", "drift-slow"])
@pytest.mark.parametrize("seed", [11, 12])
def test_a_drifting_host_sells_nothing(name, seed):
    result = searched(f"disturbed/{name}", seed)
    assert (result.status, result.certified_users) == ("invalid", 0)
    assert any("slowed down" in reason for probe in result.probes for reason in probe.invalid_reasons)


@pytest.mark.parametrize("seed", [11, 12])
def test_a_host_whose_processor_is_stolen_ends_the_search(seed):
    result = searched("disturbed/steal-for-good", seed)
    assert result.status == "invalid"
    assert any("steal" in reason for probe in result.probes for reason in probe.invalid_reasons)


@pytest.mark.parametrize("name", ["reference", "reference-noisy", "fast-noise", "heavy-tails"])
def test_a_steady_or_merely_noisy_host_is_not_called_drifting(name):
    result = searched(f"scenarios/{name}", 11)
    assert result.status == "certified"
    assert not any(probe.invalid_reasons for probe in result.probes)
    assert not any("cliff" in note for note in result.notes)


@pytest.mark.parametrize(("name", "above"), [("cliff", 4), ("cliff-noisy", 6)])
def test_a_cliff_is_named_with_the_batch_beyond_which_it_falls(name, above):
    notes = searched(f"scenarios/{name}", 11).notes
    assert any(f"cliff: with {above + 1} requests at once" in note and f"with {above}" in note for note in notes)


def test_a_stall_is_no_cliff():
    result = searched("disturbed/stalls", 1)
    assert result.status == "certified"
    assert not any("cliff" in note for note in result.notes)


def test_a_stall_behind_which_answers_overtake_breaks_no_search():
    # Found by the proof: answers that the account of the slots could not place made the host wander for ever.
    assert searched("disturbed/stalls", 5).status == "certified"
