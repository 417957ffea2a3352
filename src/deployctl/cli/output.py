"""How the command line speaks: steps and probes on stderr, answers on stdout, errors in two lines."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.status import Status
from rich.table import Table

from deployctl.errors import DeployctlError
from deployctl.events import (
    Emit,
    Event,
    HostEnded,
    HostMoved,
    ProbeEnded,
    ProbeMoved,
    StepFinished,
    StepProgress,
    StepStarted,
    Warned,
)
from deployctl.units import format_bytes, format_seconds

QUIET_S = 5.0  # nothing is silent for longer than this
MARKS = {"done": "[green]✓[/]", "skipped": "[dim]·[/]", "failed": "[red]✗[/]"}
VERDICT_STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "invalid": "magenta"}


def escape(text: str) -> str:
    """Make foreign text harmless to print: no markup, no control characters (a server's words reach the terminal)."""
    return escape_markup("".join(char if char.isprintable() or char == "\n" else "�" for char in text))


def stdout_console() -> Console:
    """The console for answers."""
    return Console(highlight=False)


def rows_table(rows: Mapping[str, str]) -> Table:
    """A table of names and values, without lines."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def print_table(table: Table) -> None:
    """Print without the spaces that fill up a table's last column: they make no sense in a file."""
    console = stdout_console()
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def print_json(document: Any) -> None:
    """Write one JSON document to stdout."""
    json.dump(document, sys.stdout, ensure_ascii=False, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_error(error: DeployctlError, *, as_json: bool, verbose: bool) -> None:
    """Say what happened and what to type next; as JSON on stdout when that was asked for."""
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        print_json({"error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}})
    console = Console(stderr=True, highlight=False)
    console.print(f"[red]error:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        console.print(f"  [dim]try:[/] {escape(error.hint)}", soft_wrap=True)


def print_internal_error(error: Exception, words: Sequence[str]) -> int:
    """Keep the traceback in a file, ask for a bug report, and return the exit code of an internal error."""
    from platformdirs import user_state_path

    from deployctl import __version__

    folder = user_state_path("deployctl")
    log = folder / f"crash-{time.strftime('%Y%m%dT%H%M%S')}.log"
    text = f"deployctl {__version__}\ncommand: {words[0] if words else ''}\n\n" + "".join(
        traceback.format_exception(error)
    )
    console = Console(stderr=True, highlight=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log.touch(mode=0o600)
        log.write_text(text, encoding="utf-8")
        where = f"the log is {log}"
    except OSError:
        sys.stderr.write(text)
        where = "the traceback is above"
    console.print(f"[red]internal error:[/] {escape(repr(error))}", soft_wrap=True)
    console.print(f"  This is a bug in deployctl. Please report it; {escape(where)}.", soft_wrap=True)
    return DeployctlError.exit_code


@contextmanager
def progress(*, verbose: int = 0) -> Iterator[Emit]:
    """Render events on stderr while the block runs: a live line on a terminal, plain lines elsewhere."""
    face = Face(Console(stderr=True, highlight=False), verbose=verbose)
    try:
        yield face
    finally:
        face.close()


class Face:
    """Renders events. On a terminal the running step is one live line; elsewhere it speaks at least every 5 s."""

    def __init__(self, console: Console, *, verbose: int = 0) -> None:
        self._console = console
        self._verbose = verbose
        self._live: Status | None = None
        self._titles: dict[str, str] = {}
        self._running: list[str] = []
        self._said = time.monotonic()
        self._hosts: dict[str, tuple[str, float]] = {}  # what each of several hosts is at, and when that was printed

    def close(self) -> None:
        """End the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Render one event."""
        match event:
            case StepStarted(step, title):
                self._titles[step] = title
                self._running.append(step)
                self._now(title)
            case StepProgress(step, message):
                self._now(f"{self._titles.get(step, step)}: {message}{_amount(event)}", always=self._verbose > 0)
            case StepFinished(step, outcome, seconds, detail):
                if step in self._running:
                    self._running.remove(step)
                self.close()
                line = f"{MARKS[outcome]} {step:<10} {escape(detail or self._titles.get(step, step))}"
                self._line(line, format_seconds(seconds))
            case HostMoved(host, message, current, total, unit):
                amount = _amount(StepProgress(host, message, current, total, unit))
                self._fleet(host, f"{message}{amount}")
            case HostEnded(host, outcome, seconds, detail):
                self._hosts.pop(host, None)
                self._line(f"{MARKS[outcome]} {escape(host):<20} {escape(detail or outcome)}", format_seconds(seconds))
            case Warned(message):
                self._say(f"[yellow]![/] {escape(message)}")
            case ProbeMoved(users, requests, attainment, low, high):
                self._now(
                    f"{_users(users)}: {requests} requests, {attainment:.1%} within the SLO ({low:.1%} to {high:.1%})"
                )
            case ProbeEnded(users, verdict, requests, attainment, low, high, seconds, reason):
                style = VERDICT_STYLES.get(verdict, "")
                share = f"{attainment:6.1%} in SLO ({low:.1%} to {high:.1%})" if requests else ""
                text = f"  {_users(users):>9}  [{style}]{verdict:<12}[/] {requests:>5} req  {share}"
                self._line(text, format_seconds(seconds))
                if reason:
                    self._say(f"             [dim]{escape(reason)}[/]")

    def _fleet(self, host: str, message: str) -> None:
        """One line for each host: live on a terminal, else as each has something to say, at most every 5 s."""
        now = time.monotonic()
        _, printed = self._hosts.get(host, ("", now - QUIET_S))
        if self._console.is_terminal:
            self._hosts[host] = (message, printed)
            self._now("\n".join(f"{name:<20} {text}" for name, (text, _) in self._hosts.items()))
            return
        if self._verbose > 0 or now - printed >= QUIET_S:
            self._say(f"  {escape(host)}: {escape(message)}")
            printed = now
        self._hosts[host] = (message, printed)

    def _line(self, left: str, right: str) -> None:
        from rich.text import Text

        text = Text.from_markup(left)
        room = min(self._console.width, 80) - len(right) - 1
        text.truncate(room, overflow="ellipsis")
        text.pad_right(max(room - len(text), 0))
        text.append(f" {right}", style="dim")
        self._say(text)

    def _say(self, what: Any) -> None:
        self.close()
        self._console.print(what, soft_wrap=True)
        self._said = time.monotonic()

    def _now(self, message: str, *, always: bool = False) -> None:
        if not self._console.is_terminal:
            if always or time.monotonic() - self._said >= QUIET_S:
                self._say(f"  {escape(message)}")
            return
        if self._live is None:
            self._live = self._console.status(escape(message), spinner="dots")
            self._live.start()
        else:
            self._live.update(escape(message))


def _users(count: int) -> str:
    return f"{count} user" + ("" if count == 1 else "s")


def _amount(event: StepProgress) -> str:
    if event.current is None:
        return ""
    if event.unit == "bytes":
        whole = f" of {format_bytes(event.total)}" if event.total else ""
        return f" ({format_bytes(event.current)}{whole})"
    whole = f"/{event.total:.0f}" if event.total else ""
    return f" ({event.current:.0f}{whole} {event.unit})"
