"""A validation as one page that sales can attach: HTML, and PDF where a Chromium is there to print it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from deployctl.errors import UsageError
from deployctl.records.validation import Claim, Spread, Validation
from deployctl.report.words import clean
from deployctl.resources import Project

Language = Literal["en", "es"]
LANGUAGES = ("en", "es")
TEMPLATE = "certificate.html.j2"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PRINT_S = 120
_HOSTS_SHOWN = 8  # one page

_ENGLISH: dict[str, Any] = {
    "title": "Plan validation",
    "verdicts": {"PASS": "PASS", "FAIL": "FAIL", "INCONCLUSIVE": "INCONCLUSIVE"},
    "meaning": {
        "PASS": "Every promise of this plan was tested and holds, on every host named below.",
        "FAIL": "At least one promise of this plan does not hold. Do not sell by it.",
        "INCONCLUSIVE": "At least one promise could not be decided. This is no proof that the plan holds.",
    },
    "measured": "Measured",
    "valid": "valid until",
    "expired": "expired",
    "promises": "What is promised, and what was found",
    "promise": "Promise",
    "promised": "Promised",
    "found": "Found (worst host)",
    "spread": "Spread over hosts",
    "judgement": "Verdict",
    "bounds": "In brackets: bounds at the stated confidence. Speeds are of the median answer of one user alone.",
    "hosts": "Hosts",
    "conditions": "Conditions of the test",
    "footer": "The figures are of these hosts, on that day, under these conditions.",
    "more": "and {count} more: {verdicts}",
    "users": "{model}: {count:g} users at once",
    "user": "{model}: one user",
    "meet": "{share} of requests meet the SLO{bounds}; {target} are asked",
    "tokens_per_s": "{model}: speed of one user",
    "seconds_for_200_tokens": "{model}: time of a 200-token answer",
    "cpus": "Virtual CPUs",
    "memory": "Memory",
    "disk": "Disk",
    "gpus": "GPUs",
    "nothing": "not measured",
    "at_least": "at least {value}",
    "at_most": "at most {value}",
    "unit_users": "users",
    "unit_user": "user",
    "confidence": "Confidence of each verdict: {share}",
    "embedded": "Measured on the embedded engine (llama.cpp behind Ollama's API), not on a genuine Ollama.",
    "engine": "Engine: {engine}",
    "run": "Evidence: run {run}",
    "slo": "SLO: {names}",
    "workload": "Workload: {name}",
    "budget": "Time allowed per model: {budget}",
}
_SPANISH: dict[str, Any] = {
    "title": "Validación del plan",
    "verdicts": {"PASS": "CUMPLE", "FAIL": "NO CUMPLE", "INCONCLUSIVE": "SIN DECIDIR"},
    "meaning": {
        "PASS": "Cada promesa de este plan se puso a prueba y se cumple en todos los servidores que siguen.",
        "FAIL": "Al menos una promesa de este plan no se cumple. No se debe vender con ella.",
        "INCONCLUSIVE": "Al menos una promesa no se pudo decidir. Esto no prueba que el plan cumpla.",
    },
    "measured": "Medido el",
    "valid": "válido hasta",
    "expired": "vencido",
    "promises": "Lo prometido y lo encontrado",
    "promise": "Promesa",
    "promised": "Prometido",
    "found": "Encontrado (peor servidor)",
    "spread": "Variación entre servidores",
    "judgement": "Veredicto",
    "bounds": "Entre paréntesis: límites con la confianza indicada. Las velocidades son de la respuesta mediana de un "
    "solo usuario.",
    "hosts": "Servidores",
    "conditions": "Condiciones de la prueba",
    "footer": "Las cifras son de estos servidores, en ese día y en estas condiciones.",
    "more": "y {count} más: {verdicts}",
    "users": "{model}: {count:g} usuarios a la vez",
    "user": "{model}: un usuario",
    "meet": "{share} de las peticiones cumple el SLO{bounds}; se pide {target}",
    "tokens_per_s": "{model}: velocidad de un usuario",
    "seconds_for_200_tokens": "{model}: tiempo de una respuesta de 200 tokens",
    "cpus": "CPU virtuales",
    "memory": "Memoria",
    "disk": "Disco",
    "gpus": "GPU",
    "nothing": "no se midió",
    "at_least": "al menos {value}",
    "at_most": "a lo más {value}",
    "unit_users": "usuarios",
    "unit_user": "usuario",
    "confidence": "Confianza de cada veredicto: {share}",
    "embedded": "Medido con el motor integrado (llama.cpp tras la API de Ollama), no con un Ollama genuino.",
    "engine": "Motor: {engine}",
    "run": "Evidencia: medición {run}",
    "slo": "SLO: {names}",
    "workload": "Carga de trabajo: {name}",
    "budget": "Tiempo permitido por modelo: {budget}",
}
WORDS: dict[str, dict[str, Any]] = {"en": _ENGLISH, "es": _SPANISH}
_ENGLISH_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
                   "November", "December")  # fmt: skip
_MONTHS = ("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre",
           "noviembre", "diciembre")  # fmt: skip


def render(validation: Validation, project: Project, *, language: str = "en", now: datetime | None = None) -> str:
    """Return the certificate as HTML. ``now`` decides whether it is said to have expired.

    Raises UsageError for a language that is not there.
    """
    if language not in WORDS:
        raise UsageError(f"--language {language}: not one of {', '.join(LANGUAGES)}")
    words = WORDS[language]
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(lambda name: _template(project, name)),
        undefined=StrictUndefined,
        finalize=_showable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    hosts = sorted(validation.hosts, key=lambda host: ("FAIL", "INCONCLUSIVE", "PASS").index(host.verdict))
    hidden = hosts[_HOSTS_SHOWN:]
    verdicts = ", ".join(dict.fromkeys(str(words["verdicts"][host.verdict]) for host in hidden))
    return environment.get_template(TEMPLATE).render(
        language=language,
        t=words,
        number=validation.validation_id,
        plan=validation.plan,
        verdict=validation.verdict,
        date=day(validation.ended_at, language),
        until=day(validation.valid_until, language),
        expired=now is not None and now > validation.valid_until,
        many=len(validation.hosts) > 1,
        rows=[_row(spread, words, language) for spread in validation.spread()],
        hosts=[
            SimpleNamespace(
                name=host.host, verdict=host.verdict, about="; ".join(filter(None, (host.system, host.problem)))
            )
            for host in hosts[:_HOSTS_SHOWN]
        ],
        more_hosts=words["more"].format(count=len(hidden), verdicts=verdicts) if hidden else "",
        conditions=_conditions(validation, words, language),
        version=validation.deployctl_version,
        digest=validation.digest,
    )


def day(moment: datetime, language: str) -> str:
    """A date as the language writes it."""
    if language == "es":
        return f"{moment.day} de {_MONTHS[moment.month - 1]} de {moment.year}"
    return f"{moment.day} {_ENGLISH_MONTHS[moment.month - 1]} {moment.year}"


def _row(spread: Spread, words: dict[str, Any], language: str) -> SimpleNamespace:
    claim = spread.claim
    one = claim.kind == "users" and claim.promised == 1
    name = words["user" if one else claim.kind].format(model=claim.model or "", count=claim.promised)
    less = claim.kind == "seconds_for_200_tokens"
    promised = f"{number(claim.promised, language)} {_unit(claim, words)}".strip()
    if claim.kind in ("tokens_per_s", "seconds_for_200_tokens"):
        promised = words["at_most" if less else "at_least"].format(value=promised)
    between = ""
    if spread.worst is not None and spread.best is not None:
        between = f"{_value(claim, spread.worst, language)} – {_value(claim, spread.best, language)}"
        if spread.worst_host:
            between += f" ({spread.worst_host})"
    return SimpleNamespace(
        name=name, promised=promised, found=_found(spread, words, language), spread=between, verdict=spread.verdict
    )


def _found(spread: Spread, words: dict[str, Any], language: str) -> str:
    claim = spread.claim
    if spread.worst is None:
        return str(words["nothing"])
    bounds = ""
    if spread.worst == claim.estimate and claim.low is not None and claim.high is not None:
        bounds = f" ({_value(claim, claim.low, language)} – {_value(claim, claim.high, language)})"
    value = _value(claim, spread.worst, language)
    if claim.kind == "users":
        target = _value(claim, claim.target or 0.0, language)
        return str(words["meet"].format(share=value, bounds=bounds, target=target))
    return f"{value} {_unit(claim, words)}{bounds}"


def _value(claim: Claim, value: float, language: str) -> str:
    if claim.kind == "users":
        return f"{number(100 * value, language)} %"
    return number(value, language)


def _unit(claim: Claim, words: dict[str, Any]) -> str:
    if claim.kind != "users":
        return claim.unit
    return str(words["unit_user" if claim.promised == 1 else "unit_users"])


def number(value: float, language: str) -> str:
    """At most three significant digits; a Spanish reader in Mexico writes the decimal point as an English one does."""
    del language
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _conditions(validation: Validation, words: dict[str, Any], language: str) -> list[str]:
    del language
    said = dict(entry.partition(": ")[::2] for entry in validation.conditions)
    found = []
    for key, name, field in (("SLO", "slo", "names"), ("workload", "workload", "name"), ("budget per model", "budget", "budget")):  # fmt: skip # noqa: E501
        if key in said:
            found.append(words[name].format(**{field: said[key]}))
    found.append(words["confidence"].format(share=f"{100 * validation.confidence:g} %"))
    engines = list(dict.fromkeys(host.engine for host in validation.hosts if host.engine))
    found += [words["engine"].format(engine=engine) for engine in engines]
    if any(engine.startswith("embedded") for engine in engines):
        found.append(words["embedded"])
    runs = dict.fromkeys(claim.run_id for host in validation.hosts for claim in host.claims if claim.run_id)
    found += [words["run"].format(run=run) for run in list(runs)[:4]]
    return found


def find_browser() -> str | None:
    """The Chromium that prints PDF; None where none is installed."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def print_pdf(html: str, target: Path) -> None:
    """Print a certificate to ``target``, which appears whole or not at all.

    Raises UsageError where no Chromium is installed or it fails; the page holds no script and may load nothing.
    """
    browser = find_browser()
    if browser is None:
        raise UsageError("a PDF needs Chromium, and none is installed", hint="apt install chromium, or write .html")
    with tempfile.TemporaryDirectory(prefix="deployctl-print-") as folder:
        page, printed = Path(folder) / "page.html", Path(folder) / "page.pdf"
        page.write_text(html, encoding="utf-8")
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium refuses to start as root with its sandbox
        command = [
            browser, "--headless=new", *sandbox, "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-extensions", f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri(),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=_PRINT_S, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{browser} did not print: {error}", hint="write .html instead") from None
        if not printed.is_file() or not printed.read_bytes().startswith(b"%PDF"):
            raise UsageError(f"{browser} printed nothing", hint="write .html instead")
        try:
            partial = target.with_name(f".{target.name}.partial")
            shutil.copyfile(printed, partial)
            partial.replace(target)
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror}") from None


def _template(project: Project, name: str) -> str | None:
    try:
        return project.path(f"templates/{name}").read_text("utf-8")
    except FileNotFoundError:
        return None


def _showable(value: object) -> object:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
