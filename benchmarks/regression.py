"""How well a fall is found: false alarms per host-night, and the power to find a tenth less within three nights.

    python benchmarks/regression.py                  # judge simulated hosts, from the library (about a minute)
    python benchmarks/regression.py --library        # make the library anew: real searches in virtual time (minutes)

A night is taken from the library: a whole search of the product (budget: one hour) against a simulated host that runs
at a given speed, with what the record would hold of it: certified users, median TPOT per level, one user's speed. So
certified users fall short of the capacity as searches do, are whole numbers, and sometimes there are none.

The speed differs from night to night by a noise model that is meant to be worse than most hosts: neighbouring nights
resemble each other (an autoregression of order one, 0.3), its steps have the tails of Student's t with 5 degrees of
freedom, and 2 % of the nights are bad (5 to 40 % slower, for that night only). All signals of a night share its speed.
The fall is one of the host's speed by 10 %; `capacity_drop` says what it does to the certified users.
"""

import argparse
import json
import math
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from deployctl.capacity.result import Budget
from deployctl.capacity.search import search
from deployctl.records.regression import LEARN, Night, judge
from deployctl.simulator.bench import baseline_prior
from deployctl.simulator.prober import VirtualProber
from deployctl.simulator.scenario import Scenario, load_scenario
from deployctl.stats.binomial import clopper_pearson

HERE = Path(__file__).parent
LIBRARY = HERE / "regression" / "library.json"
SCENARIOS = ("reference", "gpu-eight-slots", "gpu-sixteen-slots")
SPEEDS = (0.72, 0.80, 0.86, 0.90, 0.94, 0.97, 1.0, 1.03, 1.08)
SEEDS = 8
SPREADS = (0.01, 0.02, 0.03)
ALONE = 0.006  # spread of the single user's speed over its four requests, beyond the host's


def slowed(scenario: Scenario, speed: float) -> Scenario:
    server = scenario.server
    decode = tuple(rate * speed for rate in server.decode_tokens_per_s)
    changed = {"decode_tokens_per_s": decode, "prefill_tokens_per_s": server.prefill_tokens_per_s * speed}
    return scenario.model_copy(update={"server": server.model_copy(update=changed)})


def one(task: tuple[str, float, int]) -> dict[str, Any]:
    name, speed, seed = task
    scenario = slowed(load_scenario(HERE / "scenarios" / f"{name}.yml"), speed)
    prober = VirtualProber(scenario, seed)
    found = search(prober, scenario.slo.to_slo(), baseline_prior(prober), Budget(mode="standard"))
    levels: dict[int, float] = {}
    for probe in found.probes:
        if probe.verdict != "invalid" and math.isfinite(probe.tpot_s["p50"]):
            levels.setdefault(probe.users, round(probe.tpot_s["p50"], 6))
    decided = found.status in ("certified", "at_least", "not_met")
    users = found.certified_users if decided else None
    return {"scenario": name, "speed": speed, "seed": seed, "users": users, "levels": levels}


def make_library() -> None:
    tasks = [(name, speed, seed) for name in SCENARIOS for speed in SPEEDS for seed in range(SEEDS)]
    with get_context("spawn").Pool(2) as pool:
        rows = list(pool.imap(one, tasks, chunksize=4))
    LIBRARY.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def read_library() -> dict[str, dict[float, list[dict[str, Any]]]]:
    found: dict[str, dict[float, list[dict[str, Any]]]] = {}
    for row in json.loads(LIBRARY.read_text()):
        found.setdefault(row["scenario"], {}).setdefault(row["speed"], []).append(row)
    return found


def speeds(count: int, spread: float, rng: np.random.Generator) -> np.ndarray:
    steps = rng.standard_t(5, count) / math.sqrt(5 / 3) * spread * math.sqrt(1 - 0.3**2)
    logs = np.zeros(count)
    for index in range(count):
        logs[index] = (0.3 * logs[index - 1] if index else 0.0) + steps[index]
    bad = rng.random(count) < 0.02
    logs[bad] += np.log(1.0 - rng.uniform(0.05, 0.40, int(bad.sum())))
    return np.exp(logs)


def night(index: int, speed: float, library: dict[float, list[dict[str, Any]]], rng: np.random.Generator) -> Night:
    grid = sorted(library)
    near = min(max(speed, grid[0]), grid[-1])
    upper = next(at for at in grid if at >= near)
    lower = max(at for at in grid if at <= near)
    share = 0.0 if upper == lower else (near - lower) / (upper - lower)
    at = upper if rng.random() < share else lower
    row = library[at][rng.integers(len(library[at]))]
    return Night(
        id=str(index),
        users=row["users"],
        decode_tokens_per_s=40.0 * speed * math.exp(rng.normal(0, ALONE)),
        prefill_tokens_per_s=850.0 * speed * math.exp(rng.normal(0, 3 * ALONE)),
        levels={int(users): tpot * at / speed for users, tpot in row["levels"].items()},
    )


def simulate(hosts: int, nights: int, seed: int = 1) -> list[dict[str, Any]]:
    library = read_library()
    results = []
    for name, rows in library.items():
        full = [row["users"] for row in rows[1.0] if row["users"]]
        less = [row["users"] for row in rows[0.9] if row["users"]]
        for spread in SPREADS:
            rng = np.random.default_rng(seed)
            alarms = judged = 0
            found: dict[int, list[bool]] = {14: [], 30: []}
            by_users: list[bool] = []
            for _ in range(hosts):
                usual = speeds(nights, spread, rng)
                history = [night(i, float(s), rows, rng) for i, s in enumerate(usual)]
                shifts = [s for chart in judge(history).charts for s in chart.shifts if s.direction == "down"]
                alarms += len({shift.at for shift in shifts})
                judged += nights - LEARN - 2
                for known, hits in found.items():
                    fallen = [night(i, float(s) * 0.9, rows, rng) for i, s in enumerate(speeds(3, spread, rng), known)]
                    after = judge([*history[:known], *fallen])
                    falls = [
                        s for chart in after.charts for s in chart.shifts if s.direction == "down" and s.at >= known
                    ]
                    hits.append(bool(falls))
                    by_users.append(any(s.signal == "certified users" for s in falls))
            results.append(
                {
                    "scenario": name,
                    "night_to_night_spread": spread,
                    "host_nights": judged,
                    "false_alarms_per_host_night": round(alarms / judged, 5),
                    "false_alarms_upper_95": round(clopper_pearson(alarms, judged, 0.90)[1], 5),
                    **{f"power_after_{known}_nights": round(float(np.mean(hits)), 3) for known, hits in found.items()},
                    "power_lower_95_after_30": round(clopper_pearson(sum(found[30]), len(found[30]), 0.90)[0], 3),
                    "found_by_certified_users_alone": round(float(np.mean(by_users)), 3),
                    "capacity_drop": round(1 - float(np.mean(less) / np.mean(full)), 3),
                }
            )
    return results


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--library", action="store_true", help="make the library anew")
    options.add_argument("--hosts", type=int, default=300)
    options.add_argument("--nights", type=int, default=110)
    chosen = options.parse_args()
    if chosen.library:
        make_library()
    else:
        print(json.dumps(simulate(chosen.hosts, chosen.nights), indent=2))
