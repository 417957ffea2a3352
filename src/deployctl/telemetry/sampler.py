"""Watches a host while it is measured: one shell loop over one SSH channel, read by one thread."""

from __future__ import annotations

import shlex
import threading
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from deployctl.errors import HostError
from deployctl.telemetry.proc import HostWindow, Sample, between, parse, script

if TYPE_CHECKING:
    from deployctl.hosts.ssh import Lines, Session


class Sampler:
    """Samples the host about every ``interval_s`` until the block ends; a context manager.

    A connection that breaks does not raise here: the windows after it have a gap, and the gates say so.
    """

    def __init__(self, session: Session, *, interval_s: float = 2.0) -> None:
        self._session = session
        self._interval_s = interval_s
        self._samples: list[Sample] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._lines: Lines | None = None
        self.problem = ""

    def window(self, begin_s: float, end_s: float) -> HostWindow:
        """Say what the host did between two times of the monotonic clock."""
        return between(tuple(self._samples), begin_s, end_s)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Every sample so far."""
        return tuple(self._samples)

    def _read(self, lines: Lines) -> None:
        try:
            for sample in parse(lines, iter(monotonic, None)):
                self._samples.append(sample)
        except HostError as error:
            if not self._closing:
                self.problem = error.message

    def __enter__(self) -> Self:
        self._lines = self._session.lines(
            f"exec sh -c {shlex.quote(script(self._interval_s))}", silence_s=max(30.0, 5 * self._interval_s)
        )
        self._thread = threading.Thread(target=self._read, args=(self._lines,), name="telemetry", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing = True
        if self._lines is not None and self._thread is not None:
            self._lines.close()
            self._thread.join(5)
