"""Holds a number of users and shows the search what they felt, by a running Locust: `capacity.probe.Prober`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic, sleep

import numpy as np

from deployctl.capacity.probe import Look, ProbeRun, Requests
from deployctl.errors import MeasurementError
from deployctl.load.arrivals import Process
from deployctl.load.baseline import read_rate
from deployctl.load.clientside import ClientLimits, ClientState, client_bound, measure
from deployctl.load.driver import Batch, LocustDriver
from deployctl.load.samples import Sample
from deployctl.load.wire import Health

Gates = Callable[[float, float], tuple[str, ...]]
"""What invalidates the probe from outside (the host's telemetry), over two monotonic times."""

_LEVEL_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 1.0
_CUT_TIMEOUT_S = 5.0
_SILENT_S = 10.0  # reports come twice a second
_CACHED = 4.0  # prompts that are read so many times as fast as by one user alone were not read
_MANY, _SHORT = 20, 0.5  # after so many requests, answers below this share of the asked length are another workload


def no_gates(begin_s: float, end_s: float) -> tuple[str, ...]:
    """Nothing outside the load process is watched."""
    del begin_s, end_s
    return ()


@dataclass(frozen=True)
class Calibration:
    """What one user alone showed of the server: tokens that it counts per drawn prompt token (see `to_requests`), and
    prompt tokens that it reads per second, 0 where that is not known or says nothing (a warm workload).
    """

    prompt_ratio: float = 1.0
    read_tokens_per_s: float = 0.0


class Seats:
    """The users of one probe by number from 0, in the order in which they were first heard of.

    The load process numbers users apart from those of earlier probes and of other workers; the search wants them dense.
    """

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def __call__(self, user: int) -> int:
        """The number of ``user`` within the probe."""
        return self._known.setdefault(user, len(self._known))


def to_requests(samples: list[Sample], origin_s: float, seats: Seats | None = None, ratio: float = 1.0) -> Requests:
    """Return samples as the arrays that the search reads, in order of intended start, counted from ``origin_s``.

    Requests that our own stop cut are left out: their outcome is unknown. All others are in, failures as infinite.
    ``prompt_tokens`` are the drawn lengths times ``ratio``, the server's tokens per drawn one: so they follow exactly
    the law that the search is told, failed requests included. ``output_tokens`` are the server's count where there is
    one, else what was asked for.
    """
    counted = sorted((sample for sample in samples if sample.counts), key=lambda sample: sample.intended_s)
    seat = seats or Seats()
    return Requests(
        user=np.array([seat(sample.user) for sample in counted], dtype=np.int64),
        start_s=np.array([sample.intended_s - origin_s for sample in counted], dtype=np.float64),
        ttft_s=np.array([sample.ttft_s for sample in counted], dtype=np.float64),
        tpot_s=np.array([sample.tpot_s for sample in counted], dtype=np.float64),
        e2e_s=np.array([sample.e2e_s for sample in counted], dtype=np.float64),
        ok=np.array([sample.ok for sample in counted], dtype=np.bool_),
        prompt_tokens=np.array([max(1, round(ratio * one.asked_prompt_tokens)) for one in counted], dtype=np.int64),
        output_tokens=np.array([one.output_tokens if one.ok else one.asked_tokens for one in counted], dtype=np.int64),
    )


@dataclass
class _Ledger:
    """What one probe has seen so far."""

    users: int
    closed: bool
    begin_s: float
    reached_s: float
    samples: list[Sample]
    health: list[Health]
    next_starts: dict[int, float]
    last: Batch
    calibration: Calibration
    seats: Seats = field(default_factory=Seats)

    def add(self, batch: Batch) -> None:
        self.samples += [sample for sample in batch.requests if sample.intended_s >= self.begin_s]
        self.health += batch.health
        self.next_starts.update(batch.next_starts)
        self.last = batch

    def look(self, invalid: tuple[str, ...]) -> Look:
        of_level = (one for one in self.last.open_requests if one.intended_s >= self.begin_s)
        pending = sorted(of_level, key=lambda one: one.intended_s)
        first = [np.nan if one.first_token_s is None else one.first_token_s - one.intended_s for one in pending]
        return Look(
            users=self.users,
            now_s=self.last.as_of_s - self.begin_s,
            requests=to_requests(self.samples, self.begin_s, self.seats, self.calibration.prompt_ratio),
            pending_start_s=np.array([one.intended_s - self.begin_s for one in pending], dtype=np.float64),
            invalid=invalid,
            pending_ttft_s=np.array(first, dtype=np.float64),
            pending_user=np.array([self.seats(one.user) for one in pending], dtype=np.int64),
        )

    def client(self) -> ClientState:
        window = (self.reached_s, self.last.as_of_s)  # workers take their time until every user is there
        users = self.users if self.closed else 0  # Little's law for users holds in the closed loop
        return measure(users, window, self.samples, self.last.open_requests, self.next_starts, self.health)


def _odd(ledger: _Ledger) -> tuple[str, ...]:
    """What makes the outcomes themselves no measure of the workload: a silent client, short answers, cached prompts."""
    reasons = []
    silent_s = monotonic() - ledger.last.as_of_s
    if silent_s > _SILENT_S:
        reasons.append(f"client-bound: nothing was heard of the load process for {silent_s:.0f} s")
    asked = sum(sample.asked_tokens for sample in ledger.samples if sample.ok)
    given = sum(sample.output_tokens for sample in ledger.samples if sample.ok)
    if len(ledger.samples) >= _MANY and asked and given < _SHORT * asked:
        reasons.append(f"answers end early: {given / asked:.0%} of the asked tokens, so this is not the workload")
    alone, seen = ledger.calibration.read_tokens_per_s, read_rate(ledger.samples)
    if len(ledger.samples) >= _MANY and alone and seen > _CACHED * alone:
        reasons.append(
            f"prompts out of a cache: read at {seen:.0f} tokens/s, where one user alone saw {alone:.0f}; "
            "so this is not the (cold) workload"
        )
    return tuple(reasons)


def _failures(samples: list[Sample]) -> tuple[str, ...]:
    """Classes of failures with their number and the last one's own words."""
    failed = [sample for sample in samples if sample.counts and not sample.ok]
    counts = Counter(str(sample.error) for sample in failed)
    last = {str(sample.error): f"{sample.status or ''} {sample.message}".strip() for sample in failed}
    return tuple(
        f"{count} of {len(samples)} requests failed: {name}" + (f" ({last[name]})" if last[name] else "")
        for name, count in counts.most_common(3)
    )


class LoadProber:
    """Probes through a `LocustDriver`: set the level, look about once a second, drain.

    ``gates`` is asked for what invalidates the probe from outside, over its own time. ``drain_patience_s`` bounds the
    wait for open requests after a probe (default: the workload's timeout and two seconds); what is then still open is
    cut, recorded as cancelled, and counted neither as a hit nor as a miss. ``idle`` may say whether the server has
    become idle; it is asked after such a cut only, because a server goes on with requests whose client has left.

    With ``arrivals_per_s`` the loop is open: a level of n is an arrival rate of n times that, by ``process``.
    With ``replay`` the driver's log is played, whatever the level; the probe is over when all of it was answered.
    ``calibration``: what one user alone showed.
    """

    def __init__(
        self,
        driver: LocustDriver,
        *,
        gates: Gates = no_gates,
        limits: ClientLimits | None = None,
        drain_patience_s: float | None = None,
        idle: Callable[[], bool] | None = None,
        arrivals_per_s: float | None = None,
        process: Process = "poisson",
        replay: bool = False,
        calibration: Calibration | None = None,
    ) -> None:
        self.driver = driver
        self.limits = limits or ClientLimits()
        self.last_client: ClientState | None = None
        self._gates = gates
        self._patience = drain_patience_s or driver.workload.timeout_s + 2
        self._idle = idle
        self._rate = arrivals_per_s
        self._process: Process = process
        self._replay = replay
        self._calibration = calibration or Calibration()

    def __call__(self, users: int, go_on: Callable[[Look], bool], max_seconds: float) -> ProbeRun:
        """Run one probe of at most ``max_seconds`` from the level's start, plus the drain."""
        asked_s = monotonic()
        self.driver.start()  # anew, if it died in an earlier probe
        ledger = self._reach(users)
        while True:
            self._collect(ledger, min(monotonic() + _LOOK_EVERY_S, ledger.begin_s + max_seconds))
            look = ledger.look(self._invalid(ledger))
            over = not self.driver.alive or monotonic() - ledger.begin_s >= max_seconds or self._played(ledger)
            if not go_on(look) or over:
                break
        self.last_client = ledger.client()
        notes = self._drain(ledger)
        invalid = look.invalid if self.driver.alive else self._invalid(ledger)
        return ProbeRun(users, monotonic() - asked_s, look, invalid, (*notes, *_failures(ledger.samples)))

    def _reach(self, users: int) -> _Ledger:
        """Ask for the level and wait until it holds."""
        if self._replay:
            self.driver.replay()
        elif self._rate is None:
            self.driver.set_users(users)
        else:
            self.driver.set_rate(users * self._rate, self._process)
        deadline = monotonic() + _LEVEL_TIMEOUT_S + self._patience
        early: list[Batch] = []
        while monotonic() < deadline and self.driver.alive:
            batch = self.driver.poll(0.1)
            early.append(batch)
            if batch.level is not None and (batch.level.users or batch.level.rate_per_s):
                ledger = _Ledger(
                    users,
                    self._closed,
                    batch.level.began_s,
                    batch.level.reached_s,
                    [],
                    [],
                    {},
                    batch,
                    self._calibration,
                )
                for seen in early:
                    ledger.add(seen)
                return ledger
        raise MeasurementError(
            f"{users} users could not be started; the load process says: {self.driver.log_tail() or 'nothing'}",
            hint=f"read {self.driver.log_file}",
        )

    @property
    def _closed(self) -> bool:
        return self._rate is None and not self._replay

    def _played(self, ledger: _Ledger) -> bool:
        return self._replay and len(ledger.samples) >= len(self.driver.logged)

    def _collect(self, ledger: _Ledger, until_s: float) -> None:
        while self.driver.alive:
            ledger.add(self.driver.poll(max(0.001, until_s - monotonic())))
            if monotonic() >= until_s:
                return

    def _invalid(self, ledger: _Ledger) -> tuple[str, ...]:
        if lost := self.driver.lost_machines:
            return tuple(f"the load generator {name} was lost; read {self.driver.log_of(name)}" for name in lost)
        if not self.driver.alive:
            return (f"the load process died; read {self.driver.log_file}",)
        outside = self._gates(ledger.begin_s, ledger.last.as_of_s)
        return (*client_bound(ledger.client(), self.limits), *_odd(ledger), *outside)

    def _drain(self, ledger: _Ledger) -> tuple[str, ...]:
        """Let the open requests end, or cut them; return what is worth a note."""
        try:
            self.driver.set_users(0)
            if self._empty(ledger, self._patience):
                return ()
            self.driver.cut()
            self._empty(ledger, _CUT_TIMEOUT_S)
        except MeasurementError as error:
            return (error.message,)
        cut = sum(not sample.counts for sample in ledger.samples)
        if self._idle is not None:
            deadline = monotonic() + self._patience
            while not self._idle() and monotonic() < deadline:
                sleep(0.2)
        return (f"{cut} requests were cut after {self._patience:.0f} s of draining: neither hits nor misses",)

    def _empty(self, ledger: _Ledger, within_s: float) -> bool:
        deadline = monotonic() + within_s
        while monotonic() < deadline and self.driver.alive:
            batch = self.driver.poll(0.1)
            ledger.add(batch)
            if batch.level is not None and batch.level.users == 0:
                return True
        return False
