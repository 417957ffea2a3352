"""The truth: N* of a scenario, from long runs alone, never from a search. Cached by what the scenario contains."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deployctl.simulator.longrun import Attainment, Level
from deployctl.simulator.scenario import Scenario

MODEL_VERSION = 1  # of the model and of the rules here: part of the cache's key
MIN_REQUESTS = 200_000
MAX_REQUESTS = 5_000_000
_LEVEL_REQUESTS = (100_000, 1_000_000)
_LEVEL_ERROR = 0.002
_SURE = 3.0  # standard errors between a level that decides and the target
_QUICK = 40_000  # requests of a first look at a level, at most


@dataclass(frozen=True)
class Truth:
    """The largest number of users whose long-run attainment reaches the target.

    ``at_least``: even the largest number that was tried (``n_star``) holds. ``levels`` are the long runs around it.
    ``sure`` is False when a level is closer to the target than its standard error, times three, after the most
    requests that are spent on one level: then N* may be off by that level.
    """

    n_star: int
    at_least: bool
    sure: bool
    levels: tuple[Level, ...]


def find_truth(
    scenario: Scenario, *, max_users: int = 2_000, cache: Path | None = None, seed: int = 20_250_101
) -> Truth:
    """Return N* of ``scenario``, at most ``max_users``; from ``cache`` (a folder) where it is known, else kept there.

    A level at N* and the one above get at least 200,000 requests, and more until their standard error is a third of
    their distance to the target, at most 5 million. Transients (steal, stalls, drift) are no part of a long run: N* is
    that of the undisturbed server.
    """
    path = None if cache is None else cache / f"{scenario.digest[:32]}-v{MODEL_VERSION}-{max_users}.json"
    if path is not None and (known := _read(path)) is not None:
        return known
    truth = _Finder(scenario, max_users, seed).find()
    if path is not None:
        _write(path, {"name": scenario.name, **asdict(truth)})
    return truth


class _Finder:
    def __init__(self, scenario: Scenario, max_users: int, seed: int) -> None:
        self._scenario = scenario.model_copy(update={"server": scenario.server.undisturbed})
        self._target = scenario.slo.attainment
        self._max = max_users
        self._seed = seed
        self._runs: dict[int, Attainment] = {}

    def find(self) -> Truth:
        low, high = self._bracket()
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(self._refine(middle, 1, MIN_REQUESTS)):
                low = middle
            else:
                high = middle
        # Short looks may have been wrong by a level or so: let long runs push the pair to where it belongs.
        while low > 0 and not self._holds(self._long(low)):
            low -= 1
        while low < self._max and self._holds(self._long(low + 1)):
            low += 1
        levels = tuple(self._long(users) for users in (low, low + 1) if 0 < users <= self._max)
        sure = all(level.misses(self._target) >= _SURE for level in levels)
        return Truth(low, low == self._max, sure, levels)

    def _bracket(self) -> tuple[int, int]:
        """Scan upward for the last level that holds and the next that does not; attainment need not be monotone."""
        last, above, falling = 0, 0, 0
        users = 1
        while True:
            level = self._refine(users, 1, _QUICK)
            if self._holds(level):
                last, above, falling = users, 0, 0
            else:
                above = above or users
                falling += level.attainment < 0.6 * self._target
            if users == self._max:
                break
            # Beyond every slot, with two levels far below the target, more users only wait longer.
            if falling >= 2 and users >= 2 * self._scenario.server.slots:
                break
            users = min(self._max, max(users + 1, users * 3 // 2))
        return last, above or last + 1

    def _holds(self, level: Level) -> bool:
        return level.attainment >= self._target

    def _long(self, users: int) -> Level:
        return self._refine(users, MIN_REQUESTS, MAX_REQUESTS)

    def _refine(self, users: int, at_least: int, at_most: int) -> Level:
        """Add replications until the level is sure, within the bounds (requests)."""
        run = self._runs.setdefault(users, Attainment(self._scenario, users, self._seed))
        while True:
            level = run.level
            if level.requests >= at_most or (level.requests >= at_least and level.misses(self._target) >= _SURE):
                return level
            run.add()


def find_levels(
    scenario: Scenario, users: Iterable[int], *, cache: Path | None = None, seed: int = 20_250_101
) -> dict[int, Level]:
    """Return the long-run attainment at each of ``users``; from ``cache`` (a folder) where known, else kept there.

    Each has at least 100,000 requests, and more until its standard error is at most 0.002, at most 1 million.
    """
    path = None if cache is None else cache / f"{scenario.digest[:32]}-v{MODEL_VERSION}-levels.json"
    known = {level.users: level for level in _read_levels(path)} if path is not None else {}
    calm = scenario.model_copy(update={"server": scenario.server.undisturbed})
    wanted = set(users)
    for count in sorted(wanted - set(known)):
        run = Attainment(calm, count, seed)
        run.add()
        while (level := run.level).requests < _LEVEL_REQUESTS[0] or (
            level.error > _LEVEL_ERROR and level.requests < _LEVEL_REQUESTS[1]
        ):
            run.add()
        known[count] = level
    if path is not None and wanted:
        _write(path, {"name": scenario.name, "levels": [asdict(known[count]) for count in sorted(known)]})
    return {count: known[count] for count in wanted}


def truth_folder(scenarios: Path) -> Path:
    """Return where the truths of a folder of scenarios are kept: its own ``truth/`` if there is one, else the cache."""
    from platformdirs import user_cache_path

    own = scenarios / "truth"
    return own if own.is_dir() else user_cache_path("deployctl") / "truth"


def _read(path: Path) -> Truth | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Truth(data["n_star"], data["at_least"], data["sure"], tuple(Level(**level) for level in data["levels"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # never seen, or a file that something else broke: it is computed again


def _read_levels(path: Path) -> list[Level]:
    try:
        return [Level(**level) for level in json.loads(path.read_text(encoding="utf-8"))["levels"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)
