"""Real peers beside our search: AIPerf, GuideLLM and deployctl look for the same capacity, over real sockets.

Each scenario of peers/ is a server whose capacity is known from long runs of its model alone (the truth). It is served
on loopback to one tool after the other, each on a server of its own, and each is asked the same: how many users at
once, nobody thinking, before fewer than 95 % of the requests meet the SLO? The scenarios have no think time, since the
others have no users who think: concurrency is users. Nobody asks for a length, so the server draws all answers from
one law. Our side is the command line as a user types it, with a workload and an SLO that say what the scenario says.

  AIPerf     --search-recipe max-concurrency-under-sla (doubling, then an isotonic fit), p95 of TTFT below the threshold
  GuideLLM   --profile goodput (doubling, then bisection), 95 % of requests within the threshold
  deployctl  test --url

AIPerf and GuideLLM come from PyPI into environments of their own (client_peers.py); GuideLLM brings PyTorch, some 6 GB.
--requests is what both spend on a level; AIPerf warms each level up for 3 s instead of 60; the rest is as they ship. A
tool that cannot be installed or cannot run has its reason in the table; one that the budget ends has what it knew by
then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from client_peers import HOME, environment, tokenizer_in

HERE = Path(__file__).parent
SCENARIOS, RESULTS = HERE / "peers", HERE / "results" / "peers.json"
MODEL = "sim:latest"
NO_RECORD = "no record"
VERSIONS = {"aiperf": "0.13.0", "guidellm": "0.8.1"}
TOOLS = ("deployctl", *VERSIONS)
WARM_UP_S = 3.0  # before each level of AIPerf's search; its own minute would leave a small budget few levels
GRACE_S = 20.0  # between the polite and the other way of ending a tool


@dataclass(frozen=True)
class Answer:
    """What a tool found: the users that it says hold (None: no answer), the fewest that it says do not, and its words.

    ``done`` is False when the search did not come to its own end.
    """

    users: int | None
    fails_at: int | None
    said: str
    done: bool = True


def read_aiperf(history: dict[str, Any]) -> Answer:
    """From search_history.json, which grows with each level."""
    found = history.get("boundary_summary") or {}
    passed, failed = found.get("feasible_max") or {}, found.get("infeasible_min") or {}
    users, fails_at, reason = passed.get("value"), failed.get("value"), history.get("convergence_reason")
    said = f"{reason or 'unfinished'}, {len(history.get('iterations') or ())} levels"
    if failed and (failed.get("first_breach") or {}).get("observed") is None:
        # A run that failed counts as a level that did not pass: nothing was measured there.
        return Answer(users, None, f"{said}; nothing measured at {fails_at}", done=False)
    return Answer(0 if users is None and failed and reason else users, fails_at, said, done=reason is not None)


def read_guidellm(report: dict[str, Any]) -> Answer:
    """From the report's conclusion, which is written at the end."""
    for found in report.get("conclusions") or ():
        if "best_passing_streams" in found:
            probes = found["probes"]
            unresolved = sum(not probe["resolved"] for probe in probes)
            said = f"{found['stop_reason']}, {len(probes)} levels, {unresolved} unresolved"
            users = found["best_passing_streams"]
            if users is None and found["stop_reason"] == "objectives_unmet_at_minimum":
                users = 0
            return Answer(users, found["lowest_failing_streams"], said, done=found["stop_reason"] is not None)
    return Answer(None, None, "no conclusion in its report", done=False)


def read_deployctl(record: dict[str, Any]) -> Answer:
    """From the record that ``test --json`` prints."""
    if "capacity" not in record:
        return Answer(None, None, NO_RECORD, done=False)
    found = record["capacity"]
    most = found.get("at_most_users")
    said = f"{found['status']}, {len(record['probes'])} probes"
    answered = found["status"] in ("certified", "at_least", "not_met")
    return Answer(found["certified_users"] if answered else None, None if most is None else most + 1, said, answered)


def prompts(path: Path, key: str) -> Path:
    """Two thousand prompts of forty words, no two of which begin alike."""
    with path.open("w") as file:
        for number in range(2_000):
            words = [f"w{number}", *(f"w{(number * 7 + place) % 500}" for place in range(39))]
            file.write(json.dumps({key: " ".join(words)}) + "\n")
    return path


def aiperf_command(python: Path, url: str, scenario: Any, folder: Path, options: argparse.Namespace) -> list[str]:
    argv = [str(python.with_name("aiperf")), "profile", "-m", MODEL, "-u", url, "--endpoint-type", "chat"]
    argv += ["--streaming", "--tokenizer", str(tokenizer_in(python, folder)), "--use-server-token-count"]
    argv += ["--input-file", str(prompts(folder / "prompts.jsonl", "text")), "--custom-dataset-type", "single_turn"]
    argv += ["--search-recipe", "max-concurrency-under-sla", "--ttft-sla-ms", f"{scenario.slo.ttft_s * 1000:g}"]
    argv += ["--workers-max", "1", "--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics"]
    argv += ["--request-count", str(options.requests), "--artifact-dir", str(folder / "out"), "--ui", "none"]
    return argv


def guidellm_command(python: Path, url: str, scenario: Any, folder: Path, options: argparse.Namespace) -> list[str]:
    slo = json.dumps({"kind": "generative", "slo": {"ttft_ms": scenario.slo.ttft_s * 1000}})
    argv = [
        str(python.with_name("guidellm")),
        "run",
        "--backend",
        f"kind=openai_http,target={url},model={MODEL},validate_backend=false",
    ]
    argv += ["--profile", f"kind=goodput,target_attainment={scenario.slo.attainment}", "--metrics", slo]
    argv += ["--constraint", f"kind=max_requests,count={options.requests}"]
    argv += ["--tokenizer", f"kind=hf_auto,model={tokenizer_in(python, folder)}", "--disable-console"]
    argv += ["--data", f"kind=json_file,path={prompts(folder / 'prompts.jsonl', 'prompt')}"]
    return [*argv, "--output", f"kind=json,path={folder / 'out.json'}"]


def deployctl_command(url: str, scenario: Any, folder: Path, options: argparse.Namespace) -> list[str]:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    project = folder / "project" / "inventory"
    project.mkdir(parents=True)
    laws = scenario.workload.model_dump(mode="json", exclude={"thinking_share", "shared_prefix"}, exclude_none=True)
    thresholds = scenario.slo.model_dump(mode="json", exclude_none=True)
    for name, entry in (("workloads", {**laws, "timeout_s": 60}), ("slos", thresholds)):
        shipped = yaml.load((HERE.parent / "inventory" / f"{name}.yml").read_text())
        with (project / f"{name}.yml").open("w") as file:
            yaml.dump({**shipped, "peers": {"title": scenario.name, **entry}}, file)
    argv = [sys.executable, "-m", "deployctl", "--project", str(project.parent), "--data-dir", str(folder / "data")]
    argv += ["test", "--json", "--url", url, "--model", MODEL, "--workload", "peers", "--slo", "peers"]
    argv += ["--slots", str(scenario.server.slots)]  # which `up` and `test --host` read from the host themselves
    return [*argv, "--budget", f"{options.budget:g}s"]


def requests_of(url: str) -> int:
    """Requests that the server answered to the end."""
    with urllib.request.urlopen(f"{url}/simulator/state", timeout=30) as reply:
        return int(json.load(reply)["finished"])


def run(argv: list[str], folder: Path, budget_s: float) -> tuple[int | None, str]:
    """The exit code (None: the budget ended it) and the last lines that it wrote to stderr or, for peers, anywhere."""
    with (folder / "stdout").open("wb") as out, (folder / "log").open("wb") as log:
        env = {**os.environ, "NO_COLOR": "1"}
        for setting in ("DEFAULT_WARMUP_SECONDS", "FIRST_PROBE_WARMUP_FLOOR"):
            env[f"AIPERF_SEARCH_PLANNER_{setting}"] = f"{WARM_UP_S:g}"
        child = subprocess.Popen(argv, stdout=out, stderr=log, cwd=folder, env=env, start_new_session=True)
        code: int | None
        try:
            code = child.wait(timeout=budget_s)
        except subprocess.TimeoutExpired:
            code = None
            end(child)
        except BaseException:
            end(child)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # what it left behind
    text = (folder / "log").read_text(errors="replace") or (folder / "stdout").read_text(errors="replace")
    return code, " ".join(text.split("\n")[-6:]).strip()[-400:]


def end(child: subprocess.Popen[bytes]) -> None:
    """End a tool, politely first."""
    os.killpg(child.pid, signal.SIGINT)
    try:
        child.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def json_file(*paths: Path) -> dict[str, Any]:
    """The first of these that there is, or nothing."""
    for path in paths:
        if path.exists() and path.stat().st_size:
            found: dict[str, Any] = json.loads(path.read_text())
            return found
    return {}


def read(tool: str, folder: Path) -> Answer:
    """What a tool left behind in its folder."""
    if tool == "aiperf":
        return read_aiperf(json_file(*folder.glob("out/**/search_history.json")))
    if tool == "guidellm":
        return read_guidellm(json_file(folder / "out.json"))
    return read_deployctl(json_file(folder / "stdout"))


def measure(tool: str, scenario: Any, options: argparse.Namespace) -> dict[str, Any]:
    """One tool on one scenario: its answer, its time and its requests; or the reason why there is none."""
    from deployctl.simulator.process import running_simulator

    row: dict[str, Any] = {"tool": tool, "users": None, "fails_at": None, "wall_s": None, "requests": None, "why": None}
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        folder = Path(scratch)
        try:
            python = Path(sys.executable) if tool == "deployctl" else installed(tool, install=options.install)
            with running_simulator(scenario) as url:
                argv = command(tool, python, url, scenario, folder, options)
                began = time.monotonic()
                # Ours keeps its own budget, and may end a little after it.
                code, words = run(argv, folder, options.budget + (120 if tool == "deployctl" else 0))
                row |= {"wall_s": round(time.monotonic() - began, 1), "requests": requests_of(url)}
            answer = read(tool, folder)
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            return {**row, "done": False, "why": f"{type(error).__name__}: {error}"[:400]}
        if options.keep:
            keep(folder, options.keep / f"{scenario.name}-{tool}")
    if code is None and not answer.done:
        row["why"] = f"the budget of {options.budget:g} s ended it"
    elif code and not answer.users and (tool != "deployctl" or answer.said == NO_RECORD):
        # A search whose every run failed also finds that no level passed: that is no answer.
        answer = replace(answer, users=None, fails_at=None, done=False)
        row["why"] = f"exit {code}: {words}"
    return row | asdict(answer)


def command(tool: str, python: Path, url: str, scenario: Any, folder: Path, options: argparse.Namespace) -> list[str]:
    if tool == "deployctl":
        return deployctl_command(url, scenario, folder, options)
    make = {"aiperf": aiperf_command, "guidellm": guidellm_command}[tool]
    return make(python, url, scenario, folder, options)


def installed(tool: str, *, install: bool) -> Path:
    """The Python of a peer's environment. Raises OSError where there is none and none may be made."""
    folder = HOME / f"{tool}-{VERSIONS[tool]}"
    if not install and not (folder / "done").exists():
        raise OSError(f"{tool} {VERSIONS[tool]} is not installed in {HOME}, and --no-install was given")
    return Path(environment(tool, VERSIONS[tool]))


def keep(folder: Path, where: Path) -> None:
    """Keep what a tool wrote, to look at."""
    import shutil

    shutil.copytree(folder, where, dirs_exist_ok=True)


def table(rows: list[dict[str, Any]]) -> str:
    widths = {"scenario": -18, "truth": 5, "tool": -9, "answer": 6, "upward": 6, "seconds": 7, "requests": 8}
    lines = [("scenario", "truth", "tool", "answer", "upward", "seconds", "requests", "what it said")]
    for row in rows:
        upward = {None: "-", True: "YES", False: "no"}[row["upward"]]
        figures = [
            "-" if value is None else str(value) for value in (row["users"], upward, row["wall_s"], row["requests"])
        ]
        said = "; ".join(words for words in (row.get("said"), row["why"]) if words)
        lines.append((row["scenario"], str(row["truth"]), row["tool"], *figures, said))
    return "\n".join(
        "  ".join(
            [
                *(
                    word.ljust(-width) if width < 0 else word.rjust(width)
                    for word, width in zip(line, widths.values(), strict=False)
                ),
                line[-1],
            ]
        )
        for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="this one alone (may be repeated)")
    parser.add_argument("--scenario", action="append", help="this one alone, by its name (may be repeated)")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for each tool on each scenario")
    parser.add_argument("--requests", type=int, default=100, help="what AIPerf and GuideLLM spend on a level")
    parser.add_argument("--no-install", dest="install", action="store_false", help="use only what is there")
    parser.add_argument("--keep", type=Path, help="keep what the tools wrote, in this folder")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--write", action="store_true", help=f"keep the results in {RESULTS.relative_to(HERE.parent)}")
    options = parser.parse_args()
    from deployctl import __version__
    from deployctl.simulator.scenario import load_folder
    from deployctl.simulator.truth import find_truth, truth_folder

    known = load_folder(SCENARIOS)
    chosen = [scenario for scenario in known if not options.scenario or scenario.name in options.scenario]
    if not chosen:
        parser.error(f"--scenario: one of {', '.join(scenario.name for scenario in known)}")
    results: dict[str, Any] = {
        "versions": {"deployctl": __version__, **VERSIONS},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "rows": [],
    }
    for scenario in chosen:
        truth = find_truth(scenario, max_users=100, cache=truth_folder(SCENARIOS)).n_star
        for tool in options.tool or TOOLS:
            print(f"{scenario.name}: {tool} …", file=sys.stderr, flush=True)
            row = measure(tool, scenario, options)
            upward = None if row["users"] is None else row["users"] > truth
            about = {"upward": upward, "budget_s": options.budget, "requests_per_level": options.requests}
            about["load"] = round(os.getloadavg()[1], 1)  # of five minutes
            results["rows"].append({"scenario": scenario.name, "truth": truth, **row, **about})
            if options.write:
                RESULTS.parent.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps(merged(results), indent=1) + "\n")
    print(json.dumps(results, indent=2) if options.json else table(results["rows"]))


def merged(results: dict[str, Any]) -> dict[str, Any]:
    """These results, and the rows of the last ones that were not made anew."""
    made = {(row["scenario"], row["tool"]) for row in results["rows"]}
    last = json_file(RESULTS).get("rows", [])
    kept = [row for row in last if (row["scenario"], row["tool"]) not in made]
    order = sorted([*kept, *results["rows"]], key=lambda row: (row["scenario"], TOOLS.index(row["tool"])))
    return {**results, "rows": order}


if __name__ == "__main__":
    main()
