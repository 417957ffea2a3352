"""Looking after what is kept: verify all of it, bring the index level, throw away what is old."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from deployctl.errors import RecordError, StoreUnavailable
from deployctl.events import Emit, Warned
from deployctl.records.integrity import PRUNED, Verified, verify_run
from deployctl.records.retention import Policy, Removal, choose
from deployctl.records.store import LIST_HINT, Run, RunStore


def verify_all(data_dir: Path, references: tuple[str, ...]) -> tuple[list[Verified], str]:
    """Verify the runs that ``references`` mean, or all that have a record; also against the index where it answers.

    Returns what was found of each, oldest first, and why the index was not asked ("" if it was).
    """
    store = RunStore(data_dir)
    if references:
        chosen = [store.resolve(reference) for reference in references]
    else:
        chosen = [Run(run_id, folder) for run_id, folder in sorted(store.recorded().items())]
    known, warning = _digests(data_dir)
    found = [verify_run(run.id, run.dir, stored_digest=known.get(run.id)) for run in chosen]
    return found, warning


def sync(store: RunStore, emit: Emit) -> None:
    """Bring the index level with the disk; a database that is away is warned of."""
    from deployctl.records.db.index import Index

    try:
        with Index.open(store.root.parent) as index:
            done = index.sync(store)
    except StoreUnavailable as error:
        emit(Warned(error.message))
        return
    for run_id, why in done.refused:
        emit(Warned(f"not in the index: {run_id}: {why}"))


def prune(data_dir: Path, policy: Policy, *, dry_run: bool) -> list[Removal]:
    """Remove what the policy says, and say what it was. The index keeps a pruned run's figures until the run goes."""
    from deployctl.records.db.index import Index

    store = RunStore(data_dir)
    removals = choose(store.list(), policy, datetime.now(UTC))
    if dry_run or not removals:
        return removals
    gone = tuple(one.run_id for one in removals if one.what == "run")
    if gone:
        with Index.open(data_dir) as index:  # first: a run that is gone from the disk must not stay in the index
            index.forget(gone)
    for one in removals:
        if one.what == "run":
            store.remove(one.run_id)
        else:
            _prune_samples(store, one.run_id)
    return removals


def _prune_samples(store: RunStore, run_id: str) -> None:
    record = store.read(run_id)
    folder = store.root / run_id
    names = [kept.file for kept in record.samples if Path(kept.file).name == kept.file]
    note = {"pruned_at": datetime.now(UTC).isoformat(timespec="seconds"), "files": names}
    store.attach(run_id, PRUNED, json.dumps(note) + "\n")
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise RecordError(f"cannot remove {folder / name}: {error.strerror}", hint=LIST_HINT) from None


def _digests(data_dir: Path) -> tuple[dict[str, str], str]:
    from deployctl.records.db import queries
    from deployctl.records.db.index import Index

    try:
        with Index.open(data_dir) as index:
            return queries.digests(index), ""
    except StoreUnavailable as error:
        return {}, f"the index was not asked: {error.message}"
