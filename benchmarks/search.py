"""The proof of the capacity search, against hosts of known capacity: `python benchmarks/search.py` (about an hour).

Four parts, each under its own key of results/search.json:
  search     our search, certifying, on scenarios/ (--seeds of them per scenario)
  rules      the decision rules of other tools on the same scenarios (a fifth of the seeds)
  sold       yes or no at a number a fifth off the capacity (a fifth of the seeds, below and above)
  disturbed  drift, steal and stalls on disturbed/ (a fifth of the seeds): are they caught while they are there?
With --write the results, the tables of docs/search.md and docs/search.svg are made anew; `--only search` makes one
part and keeps the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from deployctl.simulator.bench import Outcome, bench_search
from deployctl.simulator.rules import RULES
from deployctl.simulator.scenario import Scenario, load_folder
from deployctl.simulator.sold import bench_sold
from deployctl.simulator.truth import truth_folder

HERE = Path(__file__).parent
SCENARIOS, DISTURBED = HERE / "scenarios", HERE / "disturbed"
RESULTS = HERE / "results" / "search.json"
PAGE, FIGURE = HERE.parent / "docs" / "search.md", HERE.parent / "docs" / "search.svg"
PARTS = ("search", "rules", "sold", "disturbed")
SLOW = 0.1  # requests/s of a CPU-like host, at most
SLOWED = 0.05  # of its speed that a drifting host must have lost for the drift to be there to be caught
FELT_S = 30.0  # of steal within the search


def search_part(seeds: int, workers: int | None) -> dict[str, Any]:
    return bench_search(
        load_folder(SCENARIOS), seeds, workers=workers, cache=truth_folder(SCENARIOS), progress=say
    ).document()


def rules_part(seeds: int, workers: int | None) -> dict[str, Any]:
    found = {}
    for rule in RULES:
        if rule != "search":
            say(rule)
            report = bench_search(
                load_folder(SCENARIOS), seeds, rule=rule, workers=workers, cache=truth_folder(SCENARIOS), progress=say
            )
            found[rule] = report.document()["pooled"]
    return {"seeds": seeds, "rules": found}


def sold_part(seeds: int, workers: int | None) -> dict[str, Any]:
    return bench_sold(load_folder(SCENARIOS), seeds, workers=workers, cache=truth_folder(SCENARIOS), progress=say)


def disturbed_part(seeds: int, workers: int | None) -> dict[str, Any]:
    scenarios = load_folder(DISTURBED)
    report = bench_search(scenarios, seeds, workers=workers, cache=truth_folder(DISTURBED), progress=say)
    rows, caught, there = [], 0, 0
    for scenario in scenarios:
        mine = [outcome for outcome in report.outcomes if outcome.scenario == scenario.name]
        exposed = [outcome for outcome in mine if disturbance(scenario, outcome)]
        seen = sum(outcome.answer.invalid for outcome in exposed)
        rows.append({"name": scenario.name, "searches": len(mine), "exposed": len(exposed), "caught": seen})
        caught, there = caught + seen, there + len(exposed)
    return {"seeds": seeds, "scenarios": rows, "pooled": {"exposed": there, "caught_rate": caught / there}}


def disturbance(scenario: Scenario, outcome: Outcome) -> bool:
    """Whether drift or steal (a stall is no gate: its misses count) was there while the search ran."""
    server = scenario.server
    if server.drift_per_hour * outcome.seconds / 3600 >= SLOWED:
        return True
    felt = sum(max(0.0, min(steal.to_s, outcome.seconds) - steal.from_s) for steal in server.steal)
    # A search that was void twice ends in the first seconds of it.
    return felt >= FELT_S or (felt > 0 and outcome.answer.invalid)


def figure(results: dict[str, Any]) -> str:
    """Each rule as a point: what share of its searches sold too much, against the host time that they took."""
    points = [("deployctl", results["search"]["pooled"])]
    points += list(results["rules"]["rules"].items())
    width, height, left, bottom = 640, 360, 64, 56
    hours = [point["median_server_hours"] for _, point in points]
    most = max(hours) * 1.15

    def x(value: float) -> float:
        return left + value / most * (width - left - 30)

    def y(value: float) -> float:
        return height - bottom - value * (height - bottom - 24)

    def text(at_x: float, at_y: float, words: str, anchor: str = "start", style: str = 'fill="#555"') -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" {style}>{words}</text>'

    title = "Share of searches that sold too much, against host time, by rule"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
        f'<g font-family="sans-serif" font-size="13"><rect width="{width}" height="{height}" fill="#fff"/>',
        *(
            f'<line x1="{left}" x2="{width - 30}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#e3e3e3"/>'
            + text(left - 8, y(share) + 4, f"{share:.0%}", "end")
            for share in (0.0, 0.25, 0.5, 0.75, 1.0)
        ),
        *(text(x(hour), height - bottom + 18, str(hour), "middle") for hour in range(int(most) + 1)),
        text(left, 15, "searches that sold more than fits"),
        text(width - 30, height - 14, "host time per search, hours (median)", "end"),
    ]
    named: dict[tuple[float, float], list[str]] = {}
    for (name, point), hour in zip(points, hours, strict=True):
        named.setdefault((x(hour), y(point["false_sale_rate"])), []).append(name)
    for (at_x, at_y), names in named.items():
        ours = names[0] == "deployctl"
        parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6" fill="{"#0a7a4b" if ours else "#b4541a"}"/>')
        anchor, gap = ("end", -10) if at_x > width - 190 else ("start", 10)
        parts.append(text(at_x + gap, at_y - 8, ", ".join(names), anchor, 'font-weight="bold"' if ours else ""))
    return "\n".join([*parts, "</g></svg>", ""])


def table(results: dict[str, Any]) -> str:
    """What docs/search.md says of the results."""
    found, sold, disturbed = results["search"], results["sold"], results["disturbed"]
    pooled, rules = found["pooled"], results["rules"]["rules"]
    rows = {row["name"]: row for row in found["scenarios"]}
    slow = [row for row in rows.values() if row["median_requests"] / row["median_server_hours"] / 3600 <= SLOW]
    cliffs = [row for name, row in rows.items() if name.startswith("cliff")]
    calm = [row for name, row in rows.items() if not name.startswith("cliff")]
    slow_hours = statistics.median(row["median_server_hours"] for row in slow)
    dear = [f"{row['name']} {row['median_server_hours']:.1f}" for row in slow if row["median_server_hours"] > 3.0]
    n300 = rules["bisect-n300"]["median_server_hours"]
    over = f" (over it: {', '.join(dear)} h)" if dear else ""
    times = n300 / pooled["median_server_hours"]
    ask, asked = sold["brisk"], sold["pooled"]
    named, falsely = (statistics.fmean(row["cliff_flagged_rate"] for row in some) for some in (cliffs, calm))
    caught = disturbed["pooled"]
    left_open = f"{asked['inconclusive_rate']:.1%}"
    measured = [
        (
            "sold more than fits (95 % upper bound)",
            "≤ 5 % (≤ 7 %)",
            f"{pooled['false_sale_rate']:.1%} ({pooled['false_sale_upper']:.1%})",
        ),
        ("within one user or 5 % of N*, of decided searches", "≥ 90 %", f"{pooled['within_rate']:.1%}"),
        (
            "median shortfall",
            "≤ 1 user or 5 %",
            f"{pooled['median_shortfall']:.0f} user, {pooled['median_shortfall_share']:.1%}",
        ),
        ("95 % intervals of the attainment that hold the truth", "93–97 %", f"{pooled['coverage']:.1%}"),
        ("host time on `reference`, median", "≤ 1.6 h", f"{rows['reference']['median_server_hours']:.2f} h"),
        (
            "host time, pooled median, against `bisect-n300`",
            "≥ 3× less",
            f"{pooled['median_server_hours']:.2f} h against {n300:.2f} h: {times:.1f}×",
        ),
        (f"host time at ≤ 0.1 requests/s, {len(slow)} scenarios", "≤ 3 h", f"median {slow_hours:.1f} h{over}"),
        (
            "yes or no at a fifth off N*, from 0.5 requests/s on",
            "≤ 15 min, ≤ 5 % wrong",
            f"median {ask['median_minutes']:.1f} min, {ask['error_rate']:.1%} wrong",
        ),
        (
            "the same on all hosts",
            "",
            f"median {asked['median_minutes']:.1f} min, {asked['error_rate']:.1%} wrong, {left_open} open after 6 h",
        ),
        ("drift or steal, where it was there: caught", "≥ 95 %", f"{caught['caught_rate']:.1%} of {caught['exposed']}"),
        ("undisturbed searches that called a probe void", "≤ 2 %", f"{pooled['invalidated_rate']:.2%}"),
        ("cliffs named (where there is none)", "≥ 95 %", f"{named:.1%} ({falsely:.1%})"),
    ]
    lines = [
        f"{len(rows)} scenarios, {found['seeds']} searches each ({pooled['searches']} in all), `certify`:",
        "",
        "| what | target | measured |",
        "|---|---|---|",
        *(f"| {what} | {target} | {value} |" for what, target, value in measured),
        "",
        f"The rules of others on the same scenarios ({results['rules']['seeds']} searches each):",
        "",
        "| rule | sold more than fits | within one user or 5 % | hours, median | hours, 95 % |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {row['false_sale_rate']:.0%} | {row['within_rate']:.0%} | {row['median_server_hours']:.1f} "
            f"| {row['p95_server_hours']:.1f} |"
            for name, row in {"deployctl": pooled, **rules}.items()
        ),
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--only", choices=PARTS, action="append", help="make this part alone (may be repeated)")
    parser.add_argument("--write", action="store_true", help="keep the results and draw the figure anew")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    few = max(1, options.seeds // 5)
    for part in options.only or PARTS:
        say(f"== {part}")
        make = {"search": search_part, "rules": rules_part, "sold": sold_part, "disturbed": disturbed_part}[part]
        results[part] = make(options.seeds if part == "search" else few, options.workers)
        if options.write:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({part: results[part].get("pooled", results[part]) for part in results}, indent=2))
    if options.write and results.keys() >= set(PARTS):
        FIGURE.write_text(figure(results))
        before, rest = PAGE.read_text().split("<!-- search -->")
        after = rest.split("<!-- /search -->")[1]
        PAGE.write_text(f"{before}<!-- search -->\n{table(results)}\n<!-- /search -->{after}")


if __name__ == "__main__":
    main()
