"""Watches the load process itself: is its loop late, is its CPU full?"""

from __future__ import annotations

import os
from time import monotonic, process_time
from typing import NoReturn

import gevent

from deployctl.load.wire import Health

_TICK_S = 0.01
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Measures the delay of a timer that should fire every 10 ms.

    A stall of one second swallows a hundred fires; they are put back with the delays that they would have seen
    (1 s, 0.99 s, ...), else a long stall would weigh no more than a short one.
    """

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._since = monotonic()
        self._cpu = process_time()

    def run(self) -> NoReturn:
        """Tick for ever; run it in a greenlet of its own."""
        while True:
            due = monotonic() + _TICK_S
            gevent.sleep(_TICK_S)
            lag = monotonic() - due
            while True:
                self._lags.append(round(max(0.0, lag), 5))
                lag -= _TICK_S
                if lag <= 0:
                    break

    def report(self, users: int, open_requests: int, worker: int = 0) -> Health:
        """Return what was seen since the last report."""
        now, cpu = monotonic(), process_time()
        share = (cpu - self._cpu) / max(1e-9, now - self._since)
        lags, self._lags = self._lags, []
        self._since, self._cpu = now, cpu
        return Health(now, tuple(lags), round(share, 4), resident_bytes(), users, open_requests, worker)


def resident_bytes() -> int:
    """Return this process's resident set size."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - half the cost of Path, twice a second
        return int(file.read().split()[1]) * _PAGE
