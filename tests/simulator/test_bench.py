from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployctl.capacity.probe import Slo
from deployctl.capacity.result import Budget, Prior
from deployctl.errors import UsageError
from deployctl.simulator.bench import Outcome, baseline_prior, bench_search, figures
from deployctl.simulator.longrun import Level
from deployctl.simulator.parallel import spread
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.rules import RULES, Answer, Interval, Question, falling_fit, wilson
from deployctl.simulator.scenario import Scenario

Make = Callable[..., Scenario]


def outcome(users: int, n_star: int = 20, hours: float = 1.0, **answer: Any) -> Outcome:
    return Outcome("x", 0, n_star, Answer(users, **answer), hours * 3600, 100, 3)


LEVELS = {"x": {10: Level(10, 0.97, 0.001, 100_000), 12: Level(12, 0.94, 0.001, 100_000)}}


def test_figures_are_those_of_a_count_by_hand() -> None:
    outcomes = [
        # Sold one too many, yet within one user; 20 is not in 21-24; one of two intervals holds the true attainment.
        outcome(21, hours=1, bracket=(21, 24), intervals=(Interval(10, 0.96, 0.99), Interval(12, 0.95, 0.98))),
        outcome(19, hours=2, bracket=(19, None), intervals=(Interval(12, 0.93, 0.95),)),
        outcome(15, hours=3, bracket=(15, 18)),
        outcome(17, hours=10, decided=False, bracket=(17, 18), invalid=True, notes=("a cliff at 8",)),
    ]
    row = figures(outcomes, LEVELS)
    assert row["searches"] == 4
    assert row["false_sale_rate"] == 0.25
    assert row["within_rate"] == pytest.approx(2 / 3)
    assert row["median_shortfall"] == 1
    assert row["coverage"] == pytest.approx(2 / 3)
    assert row["bracket_coverage"] == pytest.approx(1 / 3)
    assert row["median_server_hours"] == 2.5
    assert row["inconclusive_rate"] == 0.25
    assert row["invalidated_rate"] == 0.25
    assert row["cliff_flagged_rate"] == 0.25


def test_what_no_search_gave_is_undefined_and_not_zero() -> None:
    row = figures([outcome(5, decided=False)], LEVELS)
    assert [row[key] for key in ("within_rate", "median_shortfall", "coverage", "bracket_coverage")] == [None] * 4


def test_within_means_one_user_or_five_percent() -> None:
    assert outcome(1, n_star=2).within
    assert not outcome(0, n_star=2).within
    assert outcome(380, n_star=400).within
    assert not outcome(379, n_star=400).within


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    # Brown, Cai, DasGupta, "Interval Estimation for a Binomial Proportion", 2001; 15 of 20 computed by hand.
    low, high = wilson(15, 20)
    assert (low, high) == (pytest.approx(0.5313, abs=1e-4), pytest.approx(0.8881, abs=1e-4))


def test_the_falling_fit_pools_neighbours_that_rise() -> None:
    assert falling_fit(np.array([0.9, 0.7, 0.8, 0.2])).tolist() == pytest.approx([0.9, 0.75, 0.75, 0.2])
    assert falling_fit(np.array([1.0, 2.0, 3.0])).tolist() == pytest.approx([2.0, 2.0, 2.0])


def test_the_baseline_guesses_what_keeps_every_slot_busy(make_scenario: Make) -> None:
    prober = VirtualProber(make_scenario(), seed=1)
    prior = baseline_prior(prober)
    # One user alone takes 2.2 s and thinks 20: two slots are busy with 2 x 22.2 / 2.2 users.
    assert (prior.users_guess, prior.slots) == (20, 2)
    assert prober.host_s == pytest.approx(5 * 2.2, abs=2.3)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "search"])
def test_every_peers_rule_finds_a_knee_that_nobody_could_miss(make_scenario: Make, rule: str) -> None:
    # Constant times and no think time: three users wait 2.5 s for one of two slots, up to two never.
    scenario = make_scenario(workload={"think_s": {"dist": "constant", "mean": 0}}, slo={"ttft_s": 2.0})
    prober = VirtualProber(scenario, seed=1)
    answer = RULES[rule](prober, Question(Slo(ttft_s=2.0), Prior(), 50, Budget()))
    assert answer.users == 2
    assert prober.probes >= 3


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_ends_where_nobody_or_everybody_can_be_served(make_scenario: Make, rule: str) -> None:
    scenario = make_scenario(workload={"think_s": {"dist": "exponential", "mean": 2}})
    question = Question(Slo(ttft_s=0.01), Prior(4, 2), 6, Budget(mode="certify"))
    assert RULES[rule](VirtualProber(scenario, seed=1), question).users == 0
    easy = replace(question, slo=Slo(tpot_s=10.0))
    users = RULES[rule](VirtualProber(scenario, seed=1), easy).users
    # Ours may leave the last user to the patience of its budget; a fixed number of requests per level does not.
    assert 1 <= users <= 6 if rule == "search" else users == 6


def test_the_report_has_the_agreed_shape_and_repeats_itself(make_scenario: Make, tmp_path: Path) -> None:
    lengths = {
        "output_tokens": {"dist": "exponential", "mean": 20},
        "think_s": {"dist": "exponential", "mean": 8},
    }
    scenarios = [
        make_scenario(workload=lengths, slo={"ttft_s": 2.0}).model_copy(update={"name": name}) for name in ("b", "a")
    ]
    reports = [
        bench_search(scenarios, 4, rule="bisect-n20", workers=workers, cache=tmp_path).document() for workers in (1, 2)
    ]
    assert reports[0] == reports[1]  # however many workers
    document = json.loads(json.dumps(reports[0], allow_nan=False))
    assert [row["name"] for row in document["scenarios"]] == ["b", "a"]
    asked = {
        "n_star",
        "false_sale_rate",
        "within_rate",
        "median_shortfall",
        "coverage",
        "median_server_hours",
        "p95_server_hours",
        "inconclusive_rate",
    }
    assert asked <= set(document["scenarios"][0])
    assert (asked - {"n_star"}) | {"false_sale_upper"} <= set(document["pooled"])
    assert document["pooled"]["searches"] == 8
    assert document["pooled"]["false_sale_upper"] > document["pooled"]["false_sale_rate"]


def test_an_unknown_rule_and_no_seeds_are_refused(reference: Scenario) -> None:
    with pytest.raises(UsageError, match="no rule guess"):
        bench_search([reference], 1, rule="guess")
    with pytest.raises(UsageError, match="at least one seed"):
        bench_search([reference], 0)


def test_the_reference_bisection_costs_what_it_is_known_to_cost(reference: Scenario) -> None:
    # "n = 300 after 30: 4.9 server-hours; n = 20 per level: 0.3" (measurement.md, the same kind of case).
    for rule, hours in (("bisect-n300", 4.9), ("bisect-n20", 0.3)):
        report = bench_search([reference], 6, rule=rule, workers=1)
        assert report.document()["pooled"]["median_server_hours"] == pytest.approx(hours, rel=0.2)


def test_an_error_in_a_task_is_raised_and_ends_the_workers() -> None:
    assert sorted(spread(abs, [-1, -2, -3], 2)) == [1, 2, 3]
    with pytest.raises(TypeError):
        list(spread(abs, [1, "x", 3], 2))  # type: ignore[list-item]


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from deployctl.simulator.parallel import spread\n"
        "def work(number):\n"
        "    Path(f'{number}.pid').write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    list(spread(work, [1, 2], 2))\n"
    )
    with subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 60
        while len(pids := [file for file in tmp_path.glob("*.pid") if file.read_text()]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    workers = [int(file.read_text()) for file in pids]
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
