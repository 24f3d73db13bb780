"""The trusted wall clock: the machine's, but for jumps that others contradict.

A wall clock can be set, rightly or wrongly. It is compared with the monotonic clock: their distance
(*offset*) stays the same until somebody sets the wall clock::

    wall                ┌────────     a jump: the offset is another one
              ──────────┘
    monotonic ───────────────────

A machine alone cannot tell an error from its correction, or from the end of a suspension. It
therefore follows each jump. A node of a cluster asks the others (``judge``, see
:mod:`postroom.server.peer_clocks`): while they contradict its wall clock, it goes on with the
monotonic one.

Reading costs one comparison beside the wall clock itself; the monotonic clock is looked at four
times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

LOOK_MILLISECONDS: Final = 250
"""The time between two comparisons of the clocks."""
STEP_MILLISECONDS: Final = 250
"""A smaller difference is no jump: a thread may stand still between two readings."""
JITTER_MILLISECONDS: Final = 2
"""A smaller difference is none at all."""


class WallClockJudge(Protocol):
    """Tells whether a wall clock is to be believed."""

    def __call__(self, before: float, own: float, since: float | None) -> float:
        """Return the offset to go by, in milliseconds.

        Args:
            before: the offset of the trusted clock so far.
            own: that of the machine's wall clock.
            since: when it was found to have jumped, on the monotonic clock; ``None``: it has not.
        """


def believe(before: float, own: float, since: float | None) -> float:
    """Follow each jump: there is nobody to ask."""
    del before, since
    return own


class TrustedWall:
    """See the module.

    Args:
        wall: milliseconds since 1970.
        monotonic: seconds that never go back.

    Attributes:
        judge: asked whether the wall clock is right.
    """

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self.judge: WallClockJudge = believe
        self._wall = wall
        self._monotonic = monotonic
        self._looking = threading.Lock()
        self._looked_at = monotonic()
        self._offset = wall() - self._looked_at * 1000
        self._jumped_at: float | None = None
        self._known_from = self._known_until = 0

    def milliseconds(self) -> int:
        """Return the milliseconds since 1970."""
        wall = self._wall()
        return wall if self._known_from <= wall < self._known_until else self._look(wall)

    def look_again(self) -> None:
        """Compare the clocks at the next reading."""
        self._known_until = 0

    def look_now_and_then(self) -> None:
        """Compare the clocks if it is time, even if the wall clock stands still."""
        if (self._monotonic() - self._looked_at) * 1000 > LOOK_MILLISECONDS:
            self._known_until = 0

    def _look(self, wall: int) -> int:
        """Compare the clocks, and return the trusted time. Several threads may call it at once."""
        with self._looking:
            now = self._monotonic()
            own = wall - now * 1000
            before, passed = self._offset, max(now - self._looked_at, 0.0) * 1000
            if abs(own - before) <= STEP_MILLISECONDS:
                self._jumped_at = None
            elif self._jumped_at is None:
                self._jumped_at = now
            offset = self.judge(before, own, self._jumped_at)
            self._looked_at = now
            step = offset - before
            if abs(step) < JITTER_MILLISECONDS:
                step = 0.0
            else:
                self._offset = offset
            trusted = wall if offset == own else int(offset + now * 1000)
            self._time_passed(trusted, passed, step)
            self._known_from = trusted
            self._known_until = trusted + LOOK_MILLISECONDS if offset == own else 0
            return trusted

    def _time_passed(self, trusted: int, milliseconds: float, step: float) -> None:
        """Note that time has passed, and that the trusted clock was set by a step meanwhile.

        ``trusted`` is its reading now.
        """
