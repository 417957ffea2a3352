"""Another machine's clocks against ours, from messages to and fro. Pure."""

from __future__ import annotations

from collections import deque

from deployctl.load.wire import Machine

_EXCHANGES = 240  # a minute of reports


class Clock:
    """Another process's monotonic and wall clock against ours.

    Of the last exchanges the quickest counts (Cristian, Probabilistic clock synchronization, 1989): its error is
    half of its round trip at most. Clocks drift, some 50 ms an hour, so old exchanges say less and less.
    """

    def __init__(self, name: str, way_s: float) -> None:
        self.name = name
        self._way_s = way_s
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=_EXCHANGES)  # half a round trip, offset, ahead

    def saw(self, answers: tuple[float, float], held_s: float, wall_s: float, here: tuple[float, float]) -> None:
        """Note one exchange: we sent, they received and answered, we have their answer ``here``.

        ``answers``: our monotonic time when we sent, theirs when they received; they answered ``held_s`` later.
        ``wall_s``: their wall clock minus their monotonic one; ``here``: our monotonic and our wall clock on receipt.
        """
        sent, received = answers
        half = (here[0] - sent - held_s) / 2
        offset = sent + half - received
        self._seen.append((half, offset, wall_s - (here[1] - here[0]) - offset))

    @property
    def known(self) -> bool:
        """Whether there was an exchange."""
        return len(self._seen) > 0

    @property
    def offset_s(self) -> float:
        """What to add to their monotonic times to have them in ours."""
        return min(self._seen)[1] if self._seen else 0.0

    def told(self) -> Machine:
        """How far their wall clock is ahead, and how well that is known."""
        half_s, _, ahead_s = min(self._seen)
        return Machine(self.name, ahead_s, half_s, self._way_s)
