"""Collects what the users of this process did, for the parent and for the disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from deployctl.load.exchange import Exchange
from deployctl.load.samples import Sample
from deployctl.load.store import NO_READS, Reads, SampleWriter
from deployctl.load.wire import Health, Open, Report

_BATCH_ROWS = 100
_BATCH_S = 2.0  # small batches cost more bytes for their head than for their rows


@dataclass(slots=True)
class Live:
    """A request that is on its way."""

    seq: int
    intended_s: float
    exchange: Exchange
    greenlet: Any
    announced: bool = False
    first_announced: bool = False


@dataclass(frozen=True, slots=True)
class Parcel:
    """A report and the single reads of its finished requests, parallel to its samples (empty: not kept)."""

    report: Report
    reads: list[Reads] = field(default_factory=list)


class Recorder:
    """Users tell it when a request begins and ends; `collect` hands out what is new since the last call."""

    def __init__(self, *, keep_reads: bool) -> None:
        self.live: dict[int, Live] = {}
        self._keep_reads = keep_reads
        self._samples: list[Sample] = []
        self._reads: list[Reads] = []
        self._next_starts: dict[int, float] = {}

    def began(self, user: int, live: Live) -> None:
        """``user`` has one more request on its way."""
        self.live[user] = live

    def ended(self, sample: Sample, exchange: Exchange) -> None:
        """The user's request is over."""
        self.live.pop(sample.user, None)
        self._samples.append(sample)
        if self._keep_reads:
            stream = exchange.stream
            times = np.array(stream.times, np.float64)
            self._reads.append((times, np.array(stream.lines, np.uint32), np.array(stream.sizes, np.uint32)))

    def thinks(self, user: int, until_s: float) -> None:
        """``user`` thinks until it is to start its next request at ``until_s``."""
        self._next_starts[user] = until_s

    def cut(self) -> None:
        """End every open request."""
        for live in list(self.live.values()):
            live.greenlet.kill(block=False)

    def collect(self, health: Health | None = None, worker: int = 0) -> Parcel:
        """Return everything that is new since the last call."""
        opened: list[Open] = []
        first_tokens: list[tuple[int, int, float]] = []
        for user, live in self.live.items():
            first = live.exchange.stream.first_token_s
            known = first == first
            if not live.announced:
                live.announced = True
                live.first_announced = known
                opened.append(Open(user, live.seq, live.intended_s, first if known else None))
            elif known and not live.first_announced:
                live.first_announced = True
                first_tokens.append((user, live.seq, first))
        samples, reads, starts = self._samples, self._reads, self._next_starts
        self._samples, self._reads, self._next_starts = [], [], {}
        report = Report(
            t_s=monotonic(),
            opened=tuple(opened),
            first_tokens=tuple(first_tokens),
            samples=tuple(samples),
            next_starts=tuple(starts.items()),
            health=health,
            worker=worker,
        )
        return Parcel(report, reads)


class Shelf:
    """Finished requests on their way to disk, in batches. Without a writer it keeps nothing."""

    def __init__(self, writer: SampleWriter | None) -> None:
        self._writer = writer
        self._samples: list[Sample] = []
        self._reads: list[Reads] = []
        self._written_s = monotonic()

    def add(self, samples: Iterable[Sample], reads: list[Reads]) -> None:
        """Take finished requests and their reads."""
        if self._writer is not None:
            before = len(self._samples)
            self._samples += samples
            added = len(self._samples) - before
            self._reads += reads if len(reads) == added else [NO_READS] * added

    @property
    def due(self) -> bool:
        """Whether enough has been collected for a batch."""
        rows = len(self._samples)
        return rows >= _BATCH_ROWS or (rows > 0 and monotonic() - self._written_s > _BATCH_S)

    def write(self) -> None:
        """Append what has been collected to the file. May run in a thread; not in two at once."""
        samples, self._samples = self._samples, []
        reads, self._reads = self._reads, []
        self._written_s = monotonic()
        if self._writer is not None:
            self._writer.append(samples, reads)

    def close(self) -> None:
        """Write what is left and end the file."""
        self.write()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
