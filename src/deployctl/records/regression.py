"""Has a plan become slower? Each night against the plan's own history and noise. Pure.

Method: a self-starting two-sided CUSUM (Hawkins 1987, "Self-starting CUSUM charts for location and scale", The
Statistician 36) on logarithms, so that a drop by a share is a shift by a constant. Every night is standardised by the
mean and the spread of the series' own earlier nights, as a t-distributed prediction error, and turned into a normal
score; there is no assumed mean and no assumed noise. Scores are winsorised (Hawkins and Olwell 1998, "Cumulative Sum
Charts", ch. 3.7) so that one bad night, however bad, is never an alarm. The decision interval is the one whose average
run length without any change is what the promised rate of false alarms demands, by the Markov chain of Brook and Evans
(1972, Biometrika 59); the reference value aims at a drop by 10 %, where Page's test (1954, Biometrika 41) is the
quickest there is (Moustakides 1986, Annals of Statistics 14).

What a night says is read in up to four ways, because certified users alone are too coarse: they are whole numbers, and
a search falls short of the capacity by a random share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

DROP = 0.10
"""The drop of capacity that the test is made for, as a share."""
NIGHTS = 3
"""… to be found within so many nights."""
FALSE_ALARMS = 0.01
"""Alarms per night of a series that has not changed, at most, all its signals together."""
USERS = "certified users"
LEARN = 8
"""Nights of history before the first judgement."""

_LAG = NIGHTS - 1  # the newest nights are no history yet: a fall must not teach the chart that it is normal
_MEMORY = 60  # nights of history that count: hosts age
_FLOOR = 0.012  # no series is taken to be quieter than this from night to night
_GRAIN = 0.75  # … nor a whole number of users to be steadier than this share of the step by one user
_CLIP = 3.0  # scores count at most so much
_K_LOW, _K_HIGH = 0.5, 1.5
# Real nights have heavier tails than the normal law and resemble their neighbours; the simulation in
# benchmarks/regression.py shows how much of the promised rate that uses up.
_RESERVE = 6.0
_CELLS = 80

Direction = Literal["down", "up"]


@dataclass(frozen=True)
class Night:
    """What one night measured. None where it did not. ``levels``: median TPOT in seconds by users, of valid probes.

    ``users`` is the certified number: 0 where not even one user met the SLO, None where nothing was decided.
    """

    id: str
    users: int | None = None
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    levels: Mapping[int, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shift:
    """A change that the test found: ``at`` is the index of the alarm, ``began`` where the sum left zero.

    ``change`` is the change as a share of 1 (-0.1: a tenth less) from the nights before to those since, with a 95 %
    interval by Student's t; NaN bounds where too few nights have passed.
    """

    signal: str
    direction: Direction
    began: int
    at: int
    change: float
    low: float
    high: float


@dataclass(frozen=True)
class Chart:
    """One signal's chart after its last night. ``noise``: its spread from night to night, a share of 1, None: unknown.

    ``power``: the chance to find a drop by ``DROP`` within ``NIGHTS`` nights with this noise, None while it learns.
    """

    signal: str
    nights: int
    noise: float | None
    power: float | None
    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Judgement:
    """A series after its last night. ``state``: ``learning``, ``steady``, or that a shift was found on the last night.

    ``open``: the newest fall that no rise has followed. ``suspects``: facts that differ from the nights before it.
    """

    state: Literal["learning", "steady", "slower", "faster"]
    charts: tuple[Chart, ...]
    newest: tuple[Shift, ...]
    open: Shift | None
    suspects: tuple[tuple[str, str, str], ...]

    @property
    def power(self) -> float | None:
        """The best power among the signals."""
        return max((chart.power for chart in self.charts if chart.power is not None), default=None)


def judge(nights: Sequence[Night], *, false_alarms: float = FALSE_ALARMS, drop: float = DROP) -> Judgement:
    """Judge a series, oldest night first. Deterministic: the same nights give the same alarms, whenever it is asked."""
    signals = signals_of(nights)
    if not signals:
        return Judgement("learning", (), (), None, ())
    rate = false_alarms / (len(signals) * _RESERVE)
    charts = tuple(
        chart(name, values, rate=rate, drop=drop, floor=_grain(values) if name == USERS else _FLOOR)
        for name, values in signals.items()
    )
    last = len(nights) - 1
    newest = tuple(shift for one in charts for shift in one.shifts if shift.at == last)
    falls = sorted((s for one in charts for s in one.shifts if s.direction == "down"), key=lambda shift: shift.at)
    rises = [s for one in charts for s in one.shifts if s.direction == "up"]
    open_fall = next((fall for fall in reversed(falls) if not any(rise.at > fall.at for rise in rises)), None)
    state: Literal["learning", "steady", "slower", "faster"] = "steady"
    if any(shift.direction == "down" for shift in newest):
        state = "slower"
    elif newest:
        state = "faster"
    elif all(one.power is None for one in charts):
        state = "learning"
    first = min((shift.began for shift in newest), default=open_fall.began if open_fall else None)
    return Judgement(state, charts, newest, open_fall, suspects(nights, first) if first is not None else ())


def signals_of(nights: Sequence[Night]) -> dict[str, list[float | None]]:
    """Return the series' signals on a logarithmic scale, larger is better; those that were measured at all.

    The level of the loaded speed is the one that most nights held.
    """
    held = Counter(users for night in nights for users in night.levels)
    level = max(held, key=lambda users: (held[users], users), default=None)
    found: dict[str, list[float | None]] = {
        # Half a user keeps "nobody" on the scale.
        USERS: [None if night.users is None else math.log(night.users + 0.5) for night in nights],
        "tokens/s of one user": [_log(night.decode_tokens_per_s) for night in nights],
        "prompt tokens/s of one user": [_log(night.prefill_tokens_per_s) for night in nights],
    }
    if level is not None:
        tpot = [night.levels.get(level) for night in nights]
        found[f"speed at {level} users"] = [None if (value := _log(seconds)) is None else -value for seconds in tpot]
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def chart(
    signal: str, values: Sequence[float | None], *, rate: float, drop: float = DROP, floor: float = _FLOOR
) -> Chart:
    """Run one signal's chart; ``rate`` is the alarms per night that an unchanged series may give.

    ``floor`` is the least spread from night to night that is believed.
    """
    shifts: list[Shift] = []
    regime: list[int] = []  # indices of the nights since the last change
    sums = {"down": 0.0, "up": 0.0}
    began = {"down": 0, "up": 0}
    noise: float | None = None
    power: float | None = None
    for index, value in enumerate(values):
        if value is None:
            continue
        history = [v for i in regime[: len(regime) - _LAG][-_MEMORY:] if (v := values[i]) is not None]
        regime.append(index)
        if len(history) < LEARN:
            continue
        centre, spread = _centre_and_spread(history, floor)
        noise = spread
        k = _reference(spread, drop)
        h = decision_interval(k, rate)
        score = _score(value, centre, spread, len(history))
        for direction, sign in (("down", -1.0), ("up", 1.0)):
            if sums[direction] == 0.0:
                began[direction] = index
            sums[direction] = max(0.0, sums[direction] + sign * score - k)
        for direction in ("down", "up"):
            if sums[direction] > h:
                since = [i for i in regime if i >= began[direction]]
                before = [v for i in regime if i < began[direction] and (v := values[i]) is not None]
                after = [v for i in since if (v := values[i]) is not None]
                shifts.append(Shift(signal, direction, began[direction], index, *_change(before, after)))  # type: ignore[arg-type]
                regime = since  # what follows is judged against the new state of affairs
                sums = {"down": 0.0, "up": 0.0}
                noise = None
                break
    if noise is not None:
        k = _reference(noise, drop)
        power = power_of(math.log(1.0 / (1.0 - drop)) / noise, k, decision_interval(k, rate))
    return Chart(signal, sum(value is not None for value in values), noise, power, tuple(shifts))


def _reference(spread: float, drop: float) -> float:
    """The reference value: half of the shift that is looked for, in spreads; in steps, so that h is found once."""
    half = math.log(1.0 / (1.0 - drop)) / spread / 2.0
    return round(min(max(half, _K_LOW), _K_HIGH) * 20) / 20


def suspects(nights: Sequence[Night], began: int) -> tuple[tuple[str, str, str], ...]:
    """Return (name, before, since) of facts whose commonest value differs before and since night ``began``."""
    before, since = nights[max(0, began - _MEMORY) : began], nights[began:]
    names = dict.fromkeys(name for night in (*before, *since) for name in night.facts)
    found = []
    for name in names:
        usual, now = _usual(before, name), _usual(since, name)
        if before and usual != now:
            found.append((name, usual, now))
    return tuple(found)


@lru_cache(maxsize=512)
def decision_interval(k: float, rate: float) -> float:
    """Return the h of a one-sided CUSUM with reference ``k`` whose mean time to a false alarm is 2 / ``rate`` nights.

    Both sides together then alarm at ``rate``. Scores are standard normal, winsorised. For k large enough the largest
    single step may pass the h that is asked for; h is then raised above it, so that it takes two nights.
    """
    wanted = 2.0 / rate
    low, high = 0.0, 30.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if run_length(k, middle) < wanted else (low, middle)
    return max(high, _CLIP - k + 1e-9)


def run_length(k: float, h: float, shift: float = 0.0) -> float:
    """Return the average run length from zero of a one-sided CUSUM on winsorised normal scores of mean ``shift``."""
    matrix = _transitions(k, h, shift)
    return float(np.linalg.solve(np.eye(len(matrix)) - matrix, np.ones(len(matrix)))[0])


def power_of(shift: float, k: float, h: float, nights: int = NIGHTS) -> float:
    """Return the chance that a CUSUM at zero passes ``h`` within ``nights`` nights of a ``shift`` (in spreads)."""
    matrix = _transitions(k, h, shift)
    state = np.zeros(len(matrix))
    state[0] = 1.0
    for _ in range(nights):
        state = state @ matrix
    return float(1.0 - state.sum())


def _transitions(k: float, h: float, shift: float) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The chain of Brook and Evans: the states [0], then cells of (0, h]; a score moves by score - k."""
    width = 2.0 * h / (2 * _CELLS - 1) if h > 0 else 1.0
    centres = np.arange(_CELLS) * width

    def below(
        x: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        inside = special.ndtr(x - shift)
        return np.where(x < -_CLIP, 0.0, np.where(x >= _CLIP, 1.0, inside))

    step = centres[None, :] - centres[:, None] + k
    matrix = below(step + width / 2) - below(step - width / 2)
    matrix[:, 0] = below(step + width / 2)[:, 0]
    return np.asarray(matrix, dtype=np.float64)


def _score(value: float, centre: float, spread: float, count: int) -> float:
    """The normal score of a night: Student's prediction error, through the normal law, winsorised."""
    t = (value - centre) / (spread * math.sqrt(1.0 + 1.0 / count))
    tail = float(special.stdtr(count - 1, -abs(t)))
    score = _CLIP if tail <= 0 else min(_CLIP, -float(special.ndtri(tail)))
    return math.copysign(score, t)


def _grain(values: Sequence[float | None]) -> float:
    """How steady whole numbers can be taken to be: ten nights of 9 users do not make 8 a sensation."""
    middle = float(np.median([value for value in values if value is not None]))
    return max(_FLOOR, _GRAIN * math.log1p(math.exp(-middle)))


def _centre_and_spread(history: Sequence[float], floor: float) -> tuple[float, float]:
    """Mean and standard deviation of the history after winsorising it at three robust spreads around its median."""
    values = np.asarray(history)
    median = float(np.median(values))
    robust = max(1.4826 * float(np.median(np.abs(values - median))), floor)
    kept = np.clip(values, median - _CLIP * robust, median + _CLIP * robust)
    return float(kept.mean()), max(float(kept.std(ddof=1)), floor)


def _change(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    if not before or not after:
        return math.nan, math.nan, math.nan
    difference = float(np.mean(after) - np.mean(before))
    freedom = len(before) + len(after) - 2
    if len(before) < 2 or freedom < 1:
        return math.expm1(difference), math.nan, math.nan
    squares = float(np.var(before) * len(before) + np.var(after) * len(after))
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    half = float(special.stdtrit(freedom, 0.975)) * error
    return math.expm1(difference), math.expm1(difference - half), math.expm1(difference + half)


def _usual(nights: Sequence[Night], name: str) -> str:
    found = Counter(night.facts.get(name, "") for night in nights)
    return found.most_common(1)[0][0] if found else ""


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and 0.0 < value < math.inf else None
