"""A prober that keeps what every probe saw, and shows it again to a search that has to start anew."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from deployctl.capacity.probe import Look, Prober, ProbeRun, Requests
from deployctl.records.files import write_atomic

KEY = "conditions.json"
_PENDING = ("pending_start_s", "pending_ttft_s", "pending_user")
_ARRAYS = tuple(column.name for column in fields(Requests))


class KeptProber:
    """Implements ``capacity.probe.Prober``: finished probes come from ``folder``, the others from ``prober``.

    A search is a function of what its probes show, so showing it the look at which each finished probe was ended brings
    it to where it was (the drain after that look may show more, and lead to another verdict); then it goes on with the
    real host. Probes that were held under other ``conditions`` (another model, another engine, other settings) are
    thrown away. What a search asks in another order than before is asked anew.
    """

    def __init__(self, prober: Prober, folder: Path, conditions: Mapping[str, Any]) -> None:
        self._prober = prober
        self._folder = folder
        self.replayed = 0
        said = json.dumps(conditions, sort_keys=True)
        if _text(folder / KEY) != said:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
            folder.mkdir(parents=True, mode=0o700)
            write_atomic(folder / KEY, said.encode())
        self._kept = [run for path in sorted(folder.glob("probe-*.npz")) if (run := load(path)) is not None]
        self._next = len(list(folder.glob("probe-*.npz")))

    def __call__(self, users: int, go_on: Callable[[Look], bool], max_seconds: float) -> ProbeRun:
        """Run one probe, or show a finished one again."""
        if self._kept:
            run, look = self._kept.pop(0)
            if run.users == users and run.seconds <= max_seconds * 1.5 + 60.0:
                self.replayed += 1
                go_on(look)
                return replace(run, notes=(*run.notes, "taken over from a run that was interrupted"))
            self._kept.clear()
        seen: list[Look] = []

        def watched(look: Look) -> bool:
            seen[:] = [look]
            return go_on(look)

        run = self._prober(users, watched, max_seconds)
        ended = seen[0] if seen else run.last
        write_atomic(self._folder / f"probe-{self._next:03d}.npz", dump(run, ended), mode=0o600)
        self._next += 1
        return run


def dump(run: ProbeRun, ended: Look) -> bytes:
    """A probe, and the look at which it was ended, as bytes: numpy's archive, without pickles."""
    head = {
        "users": run.users,
        "seconds": run.seconds,
        "invalid_reasons": run.invalid_reasons,
        "notes": run.notes,
        "looks": [{"users": look.users, "now_s": look.now_s, "invalid": look.invalid} for look in (run.last, ended)],
    }
    arrays: dict[str, Any] = {"head": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)}
    for number, look in enumerate((run.last, ended)):
        arrays |= {f"{name}-{number}": getattr(look.requests, name) for name in _ARRAYS}
        pending = {name: getattr(look, name) for name in _PENDING}
        arrays |= {f"{name}-{number}": values for name, values in pending.items() if values is not None}
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def load(path: Path) -> tuple[ProbeRun, Look] | None:
    """Read a probe back; None for a file that is not one."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            head = json.loads(kept["head"].tobytes())
            last, ended = (_look(kept, number, said) for number, said in enumerate(head["looks"]))
            run = ProbeRun(head["users"], head["seconds"], last, tuple(head["invalid_reasons"]), tuple(head["notes"]))
            return run, ended
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def _look(kept: Mapping[str, Any], number: int, said: Mapping[str, Any]) -> Look:
    return Look(
        users=said["users"],
        now_s=said["now_s"],
        requests=Requests(**{name: kept[f"{name}-{number}"] for name in _ARRAYS}),
        invalid=tuple(said["invalid"]),
        pending_start_s=kept[f"pending_start_s-{number}"],
        pending_ttft_s=kept.get(f"pending_ttft_s-{number}"),
        pending_user=kept.get(f"pending_user-{number}"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:
        return None
