"""Measure what the README says of start-up, provisioning and memory: `make bench` (add WRITE=1 to update the README).

Ratios are taken between runs that alternate, so a noisy machine disturbs both sides alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEPLOYCTL = [sys.executable, "-m", "deployctl"]
SANDBOX = ["--plan", "sandbox", "--engine", "embedded", "--model", "gemma3:270m"]


def seconds(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def help_ratio(rounds: int = 15) -> dict[str, float]:
    """Start-up: `deployctl --help` against an interpreter that does nothing, alternating."""
    pairs = [(seconds([sys.executable, "-c", "pass"]), seconds([*DEPLOYCTL, "--help"])) for _ in range(rounds)]
    return {
        "python_pass_s": statistics.median(a for a, _ in pairs),
        "help_s": statistics.median(b for _, b in pairs),
        "help_ratio": statistics.median(b / a for a, b in pairs),
    }


def watched(argv: list[str]) -> tuple[dict[str, object], float, int]:
    """Run a command that prints JSON; returns the document, its wall time in s and its own peak memory in bytes."""
    began = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        peak = 0
        done = threading.Event()

        def poll() -> None:
            nonlocal peak
            while not done.wait(0.05):
                try:
                    status = Path(f"/proc/{child.pid}/status").read_text()
                except OSError:
                    return
                for line in status.splitlines():
                    if line.startswith("VmHWM:"):
                        peak = max(peak, int(line.split()[1]) * 1024)

        watcher = threading.Thread(target=poll)
        watcher.start()
        out, _ = child.communicate()
        done.set()
        watcher.join()
    if child.returncode not in (0, 6):  # 6: nothing certified in the budget, which is no matter here
        sys.exit(f"{' '.join(argv)} ended with {child.returncode}: {out[:500]}")
    return json.loads(out), time.perf_counter() - began, peak


def sandbox() -> dict[str, float]:
    """Provision an empty sandbox, again on the same one, then run the demo on it."""
    with tempfile.TemporaryDirectory() as folder:
        common = ["--json", "--data-dir", folder]
        subprocess.run(  # fill the cache: assembling archive and model counts as download
            [*DEPLOYCTL, *common, "--dry-run", "up", *SANDBOX],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        first, first_s, _ = watched([*DEPLOYCTL, *common, "provision", *SANDBOX])
        again, again_s, _ = watched([*DEPLOYCTL, *common, "provision", *SANDBOX])
        record, up_s, peak = watched([*DEPLOYCTL, *common, "up", *SANDBOX, "--budget", "2m"])
    return {
        "provision_s": first_s,
        "provision_again_s": again_s,
        "provision_again_changed": float(again["changed"]),  # type: ignore[arg-type]
        "up_s": up_s,
        "parent_peak_bytes": float(peak),
        "certified_users": float(record["capacity"]["certified_users"]),  # type: ignore[index]
        "first_changed": float(first["changed"]),  # type: ignore[arg-type]
    }


def table(figures: dict[str, float]) -> str:
    rows = [
        ("`deployctl --help` against `python -c pass`", f"{figures['help_ratio']:.1f}×", "≤ 6×"),
        ("provisioning an empty sandbox", f"{figures['provision_s']:.0f} s", "≤ 60 s"),
        (
            f"the same again ({figures['provision_again_changed']:.0f} task changed: the sandbox was off in between)",
            f"{figures['provision_again_s']:.0f} s",
            "",
        ),
        ("`deployctl up` on it, budget 2 min", f"{figures['up_s']:.0f} s", ""),
        ("peak memory of the parent process in that run", f"{figures['parent_peak_bytes'] / 1e6:.0f} MB", "≤ 200 MB"),
    ]
    lines = ["| what | measured | target |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    return "\n".join(["Measured by `make bench` on two cores of a shared virtual machine:", "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    os.environ.setdefault("DEPLOYCTL_CACHE", str(ROOT / ".cache"))
    figures = {**help_ratio(), **sandbox()}
    print(json.dumps(figures, indent=2) if options.json else table(figures))
    if options.write:
        readme = ROOT / "README.md"
        before, rest = readme.read_text().split("<!-- bench -->")
        after = rest.split("<!-- /bench -->")[1]
        readme.write_text(f"{before}<!-- bench -->\n{table(figures)}\n<!-- /bench -->{after}")


if __name__ == "__main__":
    main()
