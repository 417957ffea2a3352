"""The nights: measure what is stale, host by host, within the windows; survive whatever happens; say what changed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deployctl.capacity.probe import Prober
from deployctl.catalog.load import load_catalog
from deployctl.errors import (
    Cancelled,
    CatalogError,
    DeployctlError,
    HostBusy,
    HostError,
    StoreUnavailable,
)
from deployctl.events import Emit, Warned, step
from deployctl.jobs.measure import Keeping
from deployctl.jobs.test import test
from deployctl.jobs.up import up
from deployctl.jobs.wanted import Place, Wanted
from deployctl.nightly import journal
from deployctl.nightly.history import judge_series
from deployctl.nightly.journal import Night, only_night
from deployctl.nightly.matrix import FILE, Task, by_staleness, read_matrix, tasks_of
from deployctl.nightly.probes import KeptProber
from deployctl.nightly.summary import Finding, Summary, describe, summarise
from deployctl.records.db import queries
from deployctl.records.db.index import Index, series_of
from deployctl.records.db.queries import Series
from deployctl.records.schema import Record
from deployctl.records.store import RunStore
from deployctl.resources import Project

FOLDER = "nights"
GO_ON_WITHIN = timedelta(hours=20)
"""A night that was killed is gone on with for so long; after that its probes say nothing of today."""
_WAIT_S = 10.0


@dataclass(frozen=True)
class Limits:
    """How long a night may last in all, in seconds; None: as its windows allow."""

    seconds: float | None = None


class NightJob:
    """One night. ``run`` may be called once; everything it knows is in the journal."""

    def __init__(
        self,
        wanted: Wanted,
        *,
        matrix: Path | None,
        project: Project,
        place: Place,
        emit: Emit,
        limits: Limits | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._wanted, self._project, self._place, self._emit = wanted, project, place, emit
        self._limits = limits or Limits()
        self._now = now
        self._path = matrix or _matrix_file(project)
        self._groups = read_matrix(self._path)
        self._catalog = load_catalog(project)
        self._tasks = tasks_of(self._groups, self._catalog, self._path)
        self._store = RunStore(place.data_dir)
        self._root = place.data_dir / FOLDER
        self._notes: list[str] = []

    def run(self, *, wait: bool = False) -> Summary:
        """Hold the lock, go on with a night that was killed or begin one, and work until nothing is left or allowed.

        Raises HostBusy when another night runs and ``wait`` is False, Cancelled on Ctrl-C (the night can go on).
        """
        with only_night(self._root, wait=(lambda: time.sleep(_WAIT_S)) if wait else None):
            night = self._resume() or journal.begin(self._root, self._ordered(), now=self._now)
            try:
                self._work(night)
            except KeyboardInterrupt:
                raise Cancelled(
                    "the night was cancelled; the next start goes on with it", hint="deployctl nightly"
                ) from None
            summary = self._sum_up(night)
            night.close(summary.to_dict())
            self._index_night(summary)
            return summary

    # Beginning

    def _resume(self) -> Night | None:
        """The newest night, if it was killed a short while ago; older ones are closed as they are."""
        found = None
        for night in journal.nights(self._root):
            if night.ended:
                continue
            if found is None and self._now() - night.started_at < GO_ON_WITHIN and self._same_tasks(night):
                found = night
                self._emit(Warned(f"going on with night {night.id}, which was interrupted"))
                self._settle(night)
            else:
                self._notes.append(f"night {night.id} was interrupted and not gone on with")
                night.close(summarise(night, {}, self._now(), ("interrupted",)).to_dict())
        return found

    def _same_tasks(self, night: Night) -> bool:
        return {task.key for task in self._tasks} == set(night.progress)

    def _settle(self, night: Night) -> None:
        """A task whose run ended before the journal could say so is done."""
        for key, progress in list(night.progress.items()):
            if progress.state != "running":
                continue
            done = [run_id for run_id in progress.run_ids if run_id in self._store.recorded()]
            if done:
                night.note(key, "done", run_id=done[-1])

    def _ordered(self) -> list[Task]:
        try:
            with Index.open(self._place.data_dir) as index:
                index.sync(self._store)
                return by_staleness(self._tasks, queries.last_times(index))
        except StoreUnavailable as error:
            self._emit(Warned(f"in the order of the file, because {error.message}"))
            return list(self._tasks)

    # Working

    def _work(self, night: Night) -> None:
        deadline = None
        if self._limits.seconds is not None:
            deadline = night.started_at + timedelta(seconds=self._limits.seconds)
        queue = [key for key, progress in night.progress.items() if progress.state not in journal.FINAL]
        while queue:
            key = queue.pop(0)
            progress = night.progress[key]
            task = progress.task
            why = self._not_now(task, deadline)
            if why:
                night.note(key, "skipped", message=why)
                continue
            state, message = self._measure(night, task)
            if state in ("away", "busy"):
                if night.progress[key].attempts <= task.retries:
                    queue.append(key)  # at the end: the host may be back by then
                else:
                    night.note(key, "failed", message=message)

    def _not_now(self, task: Task, deadline: datetime | None) -> str:
        """Why a task is not begun now; "" where it may be. It must be able to end in its window."""
        now = self._now()
        ends = [deadline] if deadline is not None else []
        window = self._groups[task.group].window
        if window is not None:
            span = window.span(now)
            if span is None:
                begin = window.next_begin(now)
                return "outside its window" + (f"; it begins {begin:%Y-%m-%d %H:%M} UTC" if begin else "")
            ends.append(span[1])
        left = min((end - now).total_seconds() for end in ends) if ends else None
        if left is not None and left < task.seconds:
            return f"{max(0.0, left) / 60:.0f} min are left, and it may take {task.seconds / 60:.0f}"
        return ""

    def _measure(self, night: Night, task: Task) -> tuple[journal.State, str]:
        key = task.key
        night.note(key, "running")
        kept = night.probes_of(key)

        def through(prober: Prober, conditions: Mapping[str, Any]) -> Prober:
            return KeptProber(prober, kept, conditions)

        keeping = Keeping(began=lambda run_id: self._began(night, key, run_id), through=through)
        try:
            with step(self._emit, "task", key) as current:
                outcome = self._do(task, keeping)
                current.detail = f"{key}: {outcome.capacity.status}, {outcome.capacity.certified_users} users"
        except Cancelled as error:
            raise KeyboardInterrupt from error
        except DeployctlError as error:
            state = _state_of(error)
            night.note(key, state, message=error.message)
            self._emit(Warned(f"{key}: {error.message}"))
            return state, error.message
        except Exception as error:  # noqa: BLE001  one task's bug must not cost the others their night
            night.note(key, "failed", message=f"internal error: {error!r}")
            self._emit(Warned(f"{key}: internal error: {error!r}"))
            return "failed", repr(error)
        night.note(key, "done", run_id=outcome.run_id)
        shutil.rmtree(kept, ignore_errors=True)
        return "done", ""

    def _began(self, night: Night, key: str, run_id: str) -> None:
        night.note(key, "running", run_id=run_id)

    def _do(self, task: Task, keeping: Keeping) -> Record:
        wanted = replace(
            self._wanted,
            model=task.model,
            plan=task.plan,
            host=task.host,
            engine=task.engine or self._wanted.engine,
            slo=task.slo,
            workload=task.workload,
            budget=task.budget,
            max_users=task.max_users,
            slots=task.slots,
        )
        if task.url is not None or not task.provision:
            outcome = test(
                wanted, url=task.url, project=self._project, place=self._place, emit=self._emit, keeping=keeping
            )
        else:
            outcome = up(wanted, project=self._project, place=self._place, emit=self._emit, keeping=keeping)
        return outcome.record

    # Summing up

    def _sum_up(self, night: Night) -> Summary:
        found: dict[str, Finding] = {}
        notes = list(self._notes)
        try:
            with Index.open(self._place.data_dir) as index:
                index.sync(self._store)
                for key, progress in night.progress.items():
                    if progress.state == "done" and progress.run_ids:
                        found[key] = self._finding(key, progress.run_ids[-1], index)
        except StoreUnavailable as error:
            notes.append(f"not judged against the history: {error.message}")
            for key, progress in night.progress.items():
                if progress.state == "done" and progress.run_ids:
                    found[key] = self._finding(key, progress.run_ids[-1], None)
        return summarise(night, found, self._now(), notes)

    def _finding(self, key: str, run_id: str, index: Index | None) -> Finding:
        record = self._store.read(run_id)
        capacity = record.capacity
        finding = Finding(
            key, run_id, capacity.status, capacity.certified_users, capacity.at_most_users, "learning", "not judged"
        )
        if index is None:
            return finding
        judgement, rows = judge_series(index, Series(**series_of(record)))
        change, message = describe(judgement, first=len(rows) <= 1)
        since = rows[judgement.open.began].run_id if judgement.open is not None else ""
        return replace(
            finding,
            change=change,
            message=message,
            suspects=judgement.suspects,
            power=judgement.power,
            open_since=since,
        )

    def _index_night(self, summary: Summary) -> None:
        try:
            with Index.open(self._place.data_dir) as index:
                index.put_night(summary.night_id, summary.started_at, summary.ended_at, summary.to_dict())
        except StoreUnavailable as error:
            self._emit(Warned(error.message))


def status(data_dir: Path) -> dict[str, Any]:
    """The newest night as its journal has it, and whether one runs."""
    root = data_dir / FOLDER
    found = journal.nights(root)
    newest = found[0] if found else None
    return {
        "running": journal.running(root),
        "night_id": newest.id if newest else None,
        "started_at": newest.started_at.isoformat() if newest else None,
        "ended": newest.ended if newest else None,
        "tasks": [
            {
                "task": key,
                "state": progress.state,
                "attempts": progress.attempts,
                "run_id": progress.run_ids[-1] if progress.run_ids else None,
                "message": progress.message,
            }
            for key, progress in (newest.progress if newest else {}).items()
        ],
    }


def _state_of(error: DeployctlError) -> journal.State:
    if isinstance(error, HostBusy):
        return "busy"
    return "away" if isinstance(error, HostError) else "failed"


def _matrix_file(project: Project) -> Path:
    try:
        return project.path(FILE)
    except FileNotFoundError:
        raise CatalogError(
            f"there is no {FILE}", hint="deployctl nightly --matrix FILE; inventory/nightly.example.yml shows how"
        ) from None
