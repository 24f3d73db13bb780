"""A machine's clocks, which run at a rate of their own; the wall clock can be set wrongly.

Reading the wall clock takes a moment, as it does outside: two readings of one turn may differ, and
a deadline may fall between them.
"""

from __future__ import annotations

from typing import Final

from tests.sim.agenda import Agenda

EPOCH_SECONDS: Final = 1_700_000_000
_MOMENT_LATER: Final = 1e-6


class MachineClock:
    """A :class:`postroom.kv.clock.TimeSource`.

    Args:
        agenda: the time that really passes.
        rate: seconds of this clock in one real second.
        offset_seconds: what the wall clock is ahead.
        reading_seconds: how long it takes to read the wall clock.
    """

    def __init__(
        self, agenda: Agenda, rate: float, offset_seconds: float, reading_seconds: float = 0.0
    ) -> None:
        self._agenda = agenda
        self._rate = rate
        self._started = 1000.0 * (rate - 0.9)
        self._offset_seconds = EPOCH_SECONDS + offset_seconds
        self._reading_seconds = reading_seconds

    def wall_milliseconds(self) -> int:
        """Return the milliseconds since 1970, as far as this machine knows."""
        self._agenda.now += self._reading_seconds
        return int((self._agenda.now * self._rate + self._offset_seconds) * 1000)

    def since_millisecond(self) -> float:
        """Return 0: it does not tell which part of a millisecond has passed."""
        return 0.0

    def monotonic(self) -> float:
        """Return the seconds since some moment, which is another one on each machine."""
        return self._started + self._agenda.now * self._rate

    def moment(self, monotonic: float) -> float:
        """Return when, in real time, the monotonic clock has passed ``monotonic``."""
        return (monotonic - self._started) / self._rate + _MOMENT_LATER

    def set_wall(self, by_seconds: float) -> None:
        """Set the wall clock; the monotonic one does not notice."""
        self._offset_seconds += by_seconds

    def set_right(self) -> None:
        """Correct the wall clock, whatever anybody was told before."""
        self._offset_seconds = EPOCH_SECONDS + self._agenda.now * (1 - self._rate)
