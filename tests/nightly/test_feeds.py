"""What others read: metrics by Prometheus's own parser, a webhook on a real socket, units by systemd itself."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from deployctl.errors import UsageError
from deployctl.nightly import feeds, install
from deployctl.records.db.queries import RunRow, Series
from deployctl.report import spreadsheet

HOSTILE = [
    'a"b',
    "a\\b",
    "a\nb",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2",
    "@SUM(A1)",
    "\t=1",
    '{x="y"}',
    "\x1b[31m",
    "ñ\u202e",
]


def row(name: str = "vps-1", **changes: object) -> RunRow:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    plain: dict[str, object] = {
        "run_id": "20260501T000000Z-abcd", "digest": "d" * 64, "started_at": at, "ended_at": at,
        "series": Series(name, "cpu", name, "chat", "chat", "ollama"), "status": "finished",
        "capacity_status": "certified", "certified_users": 7, "at_most_users": None, "confidence": 0.95,
        "limited_by": name, "decode_tokens_per_s": 12.5, "prefill_tokens_per_s": None, "ttft_s": 0.3,
        "steal_share": None, "cpu_mhz": None, "facts": {"kernel": name},
    }  # fmt: skip
    return RunRow(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("parse", [openmetrics, prometheus])
@pytest.mark.parametrize("name", HOSTILE)
def test_metrics_are_read_by_both_parsers_whatever_the_names(parse, name: str) -> None:  # type: ignore[no-untyped-def]
    found = {family.name: family for family in parse(feeds.metrics([row(name)], [row(name)]))}
    (sample,) = found["deployctl_certified_users"].samples
    assert sample.value == 7
    assert set(sample.labels) == {"host", "plan", "model", "workload", "slo", "engine"}
    assert sample.labels["plan"] == "cpu"
    assert found["deployctl_regression"].samples[0].value == 1
    assert "deployctl_steal_ratio" not in found


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_no_text_breaks_the_metrics_or_becomes_a_formula(text: str) -> None:
    families = {family.name: family for family in openmetrics(feeds.metrics([row(text)]))}
    assert families["deployctl_certified_users"].samples[0].value == 7
    table = spreadsheet.render([spreadsheet.flat(row(text))], spreadsheet.RUN_COLUMNS)
    head, line = list(csv.reader(io.StringIO(table, newline="")))
    assert tuple(head) == spreadsheet.RUN_COLUMNS
    assert len(line) == len(head)
    # OWASP: a cell that begins with one of these is a formula.
    assert not any(cell[:1] in "=+-@\t\r" for cell in line if cell and not cell.replace(".", "").isdigit())


def test_numbers_in_a_table_stay_numbers() -> None:
    table = spreadsheet.render([spreadsheet.flat(row(certified_users=-0))], ("certified_users", "decode_tokens_per_s"))
    assert table == "certified_users,decode_tokens_per_s\r\n0,12.5\r\n"


def test_a_metrics_file_is_written_whole_for_a_collector_that_may_not_be_root(tmp_path: Path) -> None:
    path = tmp_path / "deployctl.prom"
    feeds.write_metrics(path, feeds.metrics([row()]))
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["deployctl.prom"]
    with pytest.raises(UsageError, match=r"\.prom"):
        feeds.write_metrics(tmp_path / "x.txt", "")


@pytest.fixture
def hook() -> Iterator[tuple[str, list[int], list[bytes]]]:
    """A server that answers with the codes in its list, one after the other."""
    codes: list[int] = []
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            code = codes.pop(0) if codes else 200
            self.send_response(code)
            if code == 302:
                self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/t0ken", codes, bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_is_tried_again_and_told_once(hook: tuple[str, list[int], list[bytes]]) -> None:
    url, codes, bodies = hook
    pauses: list[float] = []
    codes[:] = [503, 429]
    assert feeds.post(url, {"name": "ñ\x00"}, pause=pauses.append) == "webhook 127.0.0.1: delivered"
    assert pauses == [1.0, 4.0]
    assert json.loads(bodies[-1]) == {"name": "ñ\x00"}


def test_a_webhook_that_refuses_redirects_or_is_away_fails_nothing(hook: tuple[str, list[int], list[bytes]]) -> None:
    url, codes, bodies = hook
    codes[:] = [404]
    assert feeds.post(url, {}, pause=lambda _: None) == "webhook 127.0.0.1: HTTP 404, given up after 1 attempt"
    codes[:] = [302]
    assert "HTTP 302" in feeds.post(url, {}, pause=lambda _: None)
    assert len(bodies) == 2  # the redirect was not followed
    said = feeds.post("http://127.0.0.1:1/t0ken", {}, pause=lambda _: None)
    assert said == "webhook 127.0.0.1: ConnectError, given up after 4 attempts"
    assert "t0ken" not in said
    assert feeds.post("http://[::1", {}) == "webhook: not a URL"


@pytest.mark.parametrize("url", ["ftp://x/y", "nothing", "http://", "file:///etc/passwd", "http://a:b:c/"])
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        feeds.check_webhook(url)


def test_the_units_are_what_systemd_reads(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    words = ["/bin/true", "--project", "/tmp/with space/100%/$HOME", "nightly", 'a"b\\c']
    made = install.units(words, at="03:30", timezone="America/Mexico_City", user=False)
    service, timer = install.write(made, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(service), str(timer)], capture_output=True, text=True
    )
    assert "deployctl-nightly" not in done.stderr, done.stderr
    shown = subprocess.run(
        ["systemd-analyze", "calendar", "*-*-* 03:30:00 America/Mexico_City"], capture_output=True, text=True
    )
    assert "Normalized form: *-*-* 03:30:00 America/Mexico_City" in shown.stdout
    before = service.stat().st_mtime_ns
    install.write(made, tmp_path)
    assert service.stat().st_mtime_ns == before


def test_the_cron_line_escapes_what_cron_reads_as_a_line_break() -> None:
    made = install.units(["/bin/x", "/data/50%"], at="03:05", timezone=None, user=True)
    assert made.cron == "5 3 * * * /bin/x '/data/50\\%'" or made.cron == "5 3 * * * /bin/x /data/50\\%"


@pytest.mark.parametrize("at", ["24:00", "3:00", "03:60", "03:00; rm", ""])
def test_a_time_that_is_none_is_refused(at: str) -> None:
    with pytest.raises(UsageError):
        install.units(["/bin/true"], at=at, timezone=None, user=False)
