"""What others read of the nights: metrics for node_exporter, and a webhook that can fail nobody's night."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deployctl.errors import UsageError
from deployctl.records.db.queries import RunRow
from deployctl.records.files import write_atomic
from deployctl.report.words import clean

ATTEMPTS = 4
FIRST_PAUSE_S = 1.0
ANSWER_S = 10.0

_GAUGES: tuple[tuple[str, str, Callable[[RunRow], float | None]], ...] = (
    ("deployctl_certified_users", "Users that the newest run certifies.", lambda row: row.certified_users),
    ("deployctl_at_most_users", "Most users that the newest run does not rule out.", lambda row: row.at_most_users),
    (
        "deployctl_decode_tokens_per_second",
        "Tokens per second of one user alone.",
        lambda row: row.decode_tokens_per_s,
    ),
    ("deployctl_first_token_seconds", "Time to first token of one user alone.", lambda row: row.ttft_s),
    (
        "deployctl_steal_ratio",
        "Share of CPU time that other machines took during the run.",
        lambda row: row.steal_share,
    ),
    ("deployctl_run_timestamp_seconds", "When the newest run began.", lambda row: row.started_at.timestamp()),
    (
        "deployctl_run_decided",
        "1 if the newest run gave an answer, 0 if it is undecided or invalid.",
        lambda row: float(row.capacity_status in ("certified", "at_least", "not_met")),
    ),
)


def metrics(rows: Sequence[RunRow], slower: Iterable[RunRow] = (), night: Mapping[str, Any] | None = None) -> str:
    """Return the newest run of each series as metrics, in the text that node_exporter's textfile collector reads.

    The text is valid in both formats: OpenMetrics 1.0 and Prometheus 0.0.4. ``slower``: the runs of the series that
    have an open fall. ``night``: the newest night's summary.
    """
    lines: list[str] = []
    for name, help_, value_of in _GAUGES:
        found = [(row, value) for row in rows if (value := value_of(row)) is not None and math.isfinite(value)]
        lines += _family(name, help_, [(_labels(row), value) for row, value in found])
    fallen = {row.series for row in slower}
    lines += _family(
        "deployctl_regression",
        "1 if the series fell against its own history and has not risen since.",
        [(_labels(row), float(row.series in fallen)) for row in rows],
    )
    if night is not None:
        counts = night["counts"]
        lines += _family(
            "deployctl_night_tasks", "Tasks of the newest night.", [({"result": key}, counts[key]) for key in counts]
        )
        if night.get("ended_at"):
            ended = datetime.fromisoformat(night["ended_at"]).timestamp()
            lines += _family("deployctl_night_end_timestamp_seconds", "When the newest night ended.", [({}, ended)])
    return "\n".join([*lines, "# EOF"]) + "\n"


def write_metrics(path: Path, text: str) -> None:
    """Write the file whole, readable by node_exporter. Raises UsageError."""
    if path.suffix != ".prom":
        raise UsageError(f"{path}: node_exporter reads files that end in .prom only")
    try:
        write_atomic(path, text.encode(), mode=0o644)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def post(url: str, document: Mapping[str, Any], *, pause: Callable[[float], None] = time.sleep) -> str:
    """Send JSON to a webhook, up to ``ATTEMPTS`` times; return what became of it, in words. Never raises.

    Only what may pass is tried again: no answer, 408, 429 and 5xx. Redirects are not followed: the body would reach
    somebody else. The words name the host only, since many webhooks carry their secret in the path.
    """
    try:
        host = urlsplit(url).hostname or "?"
    except ValueError:
        return "webhook: not a URL"
    said = "not tried"
    for attempt in range(ATTEMPTS):
        if attempt:
            pause(FIRST_PAUSE_S * 4 ** (attempt - 1))
        try:
            import httpx

            answer = httpx.post(
                url,
                content=json.dumps(document, ensure_ascii=True, allow_nan=False),
                headers={"content-type": "application/json", "user-agent": "deployctl"},
                timeout=ANSWER_S,
                follow_redirects=False,
            )
        except Exception as error:  # noqa: BLE001  a feed must not cost a night, whatever a library raises
            said = f"webhook {host}: {type(error).__name__}"
            continue
        if answer.is_success:
            return f"webhook {host}: delivered"
        said = f"webhook {host}: HTTP {answer.status_code}"
        if answer.status_code not in (408, 429) and answer.status_code < 500:
            break
    return f"{said}, given up after {attempt + 1} attempt{'s' if attempt else ''}"


def check_webhook(url: str) -> None:
    """Refuse what is no http(s) URL. Raises UsageError."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise UsageError("--webhook: not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("--webhook: not an http or https URL", hint="--webhook https://example.org/hook")


def _labels(row: RunRow) -> dict[str, str]:
    names = ("host", "plan", "model", "workload", "slo", "engine")
    return {name: getattr(row.series, name) for name in names}


def _family(name: str, help_: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> list[str]:
    if not samples:
        return []
    lines = [f"# TYPE {name} gauge", f"# HELP {name} {help_}"]
    return lines + [f"{name}{_block(labels)} {float(value):.10g}" for labels, value in samples]


def _block(labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{shown}}}" if shown else ""


def _escape(value: str) -> str:
    # Backslash, quote and line feed by the format; other controls would end up in somebody's terminal.
    text = clean(value, 200)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
