"""Time that passes only when the simulation lets it, and a wall clock that can be set wrongly.

Reading the wall clock takes a moment, as it does outside: two readings of one turn may differ, and
a deadline may fall between them.
"""

from __future__ import annotations

from typing import Final

from tests.sim.agenda import Agenda

EPOCH_MILLISECONDS: Final = 1_700_000_000_000


class VirtualClock:
    """A :class:`postroom.kv.clock.TimeSource`.

    Args:
        agenda: the time that passes.
        reading_seconds: how long it takes to read the wall clock.
    """

    def __init__(self, agenda: Agenda, reading_seconds: float = 0.0) -> None:
        self._agenda = agenda
        self._reading_seconds = reading_seconds
        self._offset_milliseconds = EPOCH_MILLISECONDS

    def wall_milliseconds(self) -> int:
        """Milliseconds since 1970, as far as this machine knows."""
        self._agenda.now += self._reading_seconds
        return int(self._agenda.now * 1000) + self._offset_milliseconds

    def monotonic(self) -> float:
        """Seconds since the simulation began."""
        return self._agenda.now

    def advance(self, seconds: float) -> None:
        """Time passes."""
        assert seconds >= 0
        self._agenda.now += seconds

    def advance_to(self, moment: float) -> None:
        """Time passes until ``moment`` on the monotonic clock, if that is still to come."""
        self._agenda.now = max(self._agenda.now, moment)

    def correct_wall(self, milliseconds: int) -> None:
        """Somebody finds that it is ``milliseconds`` at least, and sets the wall clock right."""
        behind = milliseconds - self.wall_milliseconds()
        self._offset_milliseconds += max(behind, 0)

    def set_right(self) -> None:
        """Somebody corrects the wall clock, whatever anybody was told before."""
        self._offset_milliseconds = EPOCH_MILLISECONDS

    def set_wall(self, by_seconds: float) -> None:
        """Somebody sets the wall clock; the monotonic one does not notice."""
        self._offset_milliseconds += int(by_seconds * 1000)
