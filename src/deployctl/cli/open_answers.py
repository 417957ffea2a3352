"""What an open loop answers: a summary for people, or one JSON document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from deployctl.cli.context import Globals
from deployctl.cli.output import escape, print_json, stdout_console
from deployctl.errors import MeasurementError
from deployctl.jobs.openloop import EXIT_BY_STATUS
from deployctl.units import format_seconds

if TYPE_CHECKING:
    from deployctl.jobs.test import OpenAnswer


def show_open(answer: OpenAnswer, world: Globals) -> None:
    """Print the answer and exit with the code of its status."""
    if world.json:
        print_json(answer.document)
    else:
        _print(answer.document)
        stdout_console().print(f"answer  {escape(str(answer.file))}", soft_wrap=True)
    code = EXIT_BY_STATUS.get(answer.status, MeasurementError.exit_code)
    if code:
        raise typer.Exit(code)


def headline(document: dict[str, Any]) -> str:
    """The answer in one sentence."""
    asked, target = document["arrivals"], document["slo"]["attainment"]
    slo = f"the SLO “{document['slo']['name']}”"
    last = document["probes"][-1]
    if "log" in asked:
        share = last["attainment"]
        met = "meets" if document["status"] == "pass" else "does not meet"
        return f"{share:.1%} of the log's {last['requests']} requests met {slo}: it {met} the {target:.0%} asked for"
    if asked["rate_per_s"] == "max":
        best, most = document["certified_rate_per_s"], document["at_most_rate_per_s"]
        more = f"; {most:.3g} a second at most" if most is not None else ""
        if best is None:
            return f"no rate could be proven to meet {slo}{more}"
        return f"proven at {document['confidence']:.0%}: {slo} is met at {best:.3g} requests a second{more}"
    said = {"pass": f"meets {slo}", "fail": f"does not meet {slo}"}
    what = said.get(document["status"], f"could not be decided ({document['status']})")
    return f"{asked['rate_per_s']:g} requests a second ({asked['process']}): {what}"


def _print(document: dict[str, Any]) -> None:
    console = stdout_console()
    console.print(f"[bold]{escape(headline(document))}[/]", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("req/s", "verdict", "req", "in SLO", "TTFT p50", "p95", "p99", "TPOT p95", "E2E p95"):
        table.add_column(name, justify="left" if name == "verdict" else "right", no_wrap=True)
    for probe in document["probes"]:
        ttft = [_seconds(probe["ttft_s"][name]) for name in ("p50", "p95", "p99")]
        share = "–" if probe["attainment"] is None else f"{probe['attainment']:.1%}"
        table.add_row(
            f"{probe['rate_per_s']:.3g}",
            probe["verdict"],
            str(probe["requests"]),
            share,
            *ttft,
            _seconds(probe["tpot_s"]["p95"]),
            _seconds(probe["e2e_s"]["p95"]),
        )
    console.print(table)
    for probe in document["probes"]:
        for reason in probe["invalid_reasons"]:
            console.print(f"[magenta]![/] {escape(reason)}", soft_wrap=True)
    for note in document["notes"]:
        console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)


def _seconds(value: float | None) -> str:
    return "∞" if value is None else format_seconds(value)
