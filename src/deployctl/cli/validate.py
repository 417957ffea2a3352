"""deployctl validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deployctl.cli import options as opt
from deployctl.cli.app import globals_of
from deployctl.cli.context import Globals
from deployctl.cli.wanting import place_of, wanted_of
from deployctl.errors import UsageError

if TYPE_CHECKING:
    from deployctl.jobs.validate import Validated

EXIT_BY_VERDICT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 2}
STYLES = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow"}


def command(
    ctx: typer.Context,
    plan: opt.PlanId,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A host of the plan, may be repeated; none: all of inventory/hosts.yml."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only what is promised of this model.")] = None,
    key: opt.KeyFile = None,
    accept_new: opt.AcceptNew = False,
    engine: opt.Engine = None,
    ollama_archive: opt.Archive = None,
    ollama_version: opt.OllamaVersion = None,
    ollama_mirror: opt.Mirror = None,
    gguf: opt.Gguf = None,
    slo: opt.SloName = None,
    workload: opt.WorkloadName = None,
    budget: Annotated[str, typer.Option("--budget", help="Time for each model of each host.")] = "15m",
    seed: opt.Seed = 1,
    anyway: Annotated[bool, typer.Option("--anyway", help="Measure a host that has less than was sold, too.")] = False,
    valid_days: Annotated[float, typer.Option("--valid-days", min=0, help="How long the certificate holds.")] = 30,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML there.")] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Write the certificate there: a .html or .pdf file.")
    ] = None,
    language: Annotated[str, typer.Option("--language", help="Of the certificate: en or es.")] = "en",
) -> None:
    """Test a plan's promises on its hosts: PASS, FAIL or INCONCLUSIVE, each with its evidence.

    Exit code: 0 all promises hold, 1 one does not, 2 one could not be decided (also: the command line is wrong).
    """
    from dataclasses import replace

    from deployctl.cli.output import progress
    from deployctl.jobs.validate import validate
    from deployctl.report.certificate import LANGUAGES, find_browser

    if language not in LANGUAGES:
        raise UsageError(f"--language {language}: not one of {', '.join(LANGUAGES)}")
    if certificate is not None and certificate.suffix not in (".html", ".pdf"):
        raise UsageError(f"--certificate {certificate}: neither .html nor .pdf")
    if certificate is not None and certificate.suffix == ".pdf" and find_browser() is None:
        raise UsageError("a PDF needs Chromium, and none is installed", hint="apt install chromium, or write .html")
    world = globals_of(ctx)
    wanted = replace(wanted_of(ctx), host=None, model=model or "")
    with progress(verbose=world.verbose) as emit:
        done = validate(
            wanted,
            hosts=tuple(host or ()),
            model=model,
            project=world.project,
            place=place_of(world),
            emit=emit,
            valid_days=valid_days,
            anyway=anyway,
        )
    written = _write(done, world, junit, certificate, language)
    _show(done, world, written)
    raise typer.Exit(EXIT_BY_VERDICT[done.validation.verdict])


def _write(done: Validated, world: Globals, junit: Path | None, certificate: Path | None, language: str) -> list[Path]:
    from deployctl.report import certificate as page
    from deployctl.report import junit as xml

    html = page.render(done.validation, world.project, language=language)
    wanted: list[tuple[Path, str]] = [(done.folder / f"certificate-{language}.html", html)]
    if junit is not None:
        wanted.append((junit, xml.render(done.validation)))
    if certificate is not None and certificate.suffix == ".html":
        wanted.append((certificate, html))
    written = []
    for path, content in wanted:
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    if certificate is not None and certificate.suffix == ".pdf":
        page.print_pdf(html, certificate)
        written.append(certificate)
    return written


def _show(done: Validated, world: Globals, written: list[Path]) -> None:
    import json

    from deployctl.cli.output import escape, print_json, stdout_console
    from deployctl.report.junit import figures

    if world.json:
        document = json.loads(done.validation.to_json())
        hosts = [
            {**block, "verdict": host.verdict}
            for block, host in zip(document["hosts"], done.validation.hosts, strict=True)
        ]
        print_json(
            {**document, "hosts": hosts, "verdict": done.validation.verdict, "files": [str(path) for path in written]}
        )
        return
    console = stdout_console()
    for host in done.validation.hosts:
        console.print(f"[bold]{escape(host.host)}[/] {escape(host.system)}", soft_wrap=True)
        for claim in host.claims:
            about = f" of {claim.model}" if claim.model else ""
            console.print(
                f"  [{STYLES[claim.verdict]}]{claim.verdict:<12}[/] {claim.kind}{escape(about)}: promised "
                f"{claim.promised:g} {claim.unit}, {figures(claim)}; {escape(claim.evidence)}",
                soft_wrap=True,
            )
        if host.problem:
            console.print(f"  [yellow]INCONCLUSIVE[/] {escape(host.problem)}", soft_wrap=True)
    verdict = done.validation.verdict
    console.print(f"[bold {STYLES[verdict]}]{verdict}[/] plan {escape(done.validation.plan.id)}, valid until "
                  f"{done.validation.valid_until:%Y-%m-%d}", soft_wrap=True)  # fmt: skip
    if done.problem:
        console.print(f"[red]not kept:[/] {escape(done.problem)}", soft_wrap=True)
    for path in written:
        console.print(f"wrote {escape(str(path))}", soft_wrap=True)
