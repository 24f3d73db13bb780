"""Clocks: timestamps that follow the wall clock and never step back, and a wall clock to trust.

A timestamp of a *hybrid logical clock* is a 64-bit number: 48 bits of milliseconds since 1970, 16
bits of a logical counter (Kulkarni et al., *Logical Physical Clocks*, 2014). ``update`` takes a
peer's timestamp into account, and refuses one from a clock too far ahead.

The wall clock can be set, so this clock keeps a *lead*: what it is ahead of the trusted wall clock.
A wall clock that is set back by a day adds a day to it; one that is set forward takes it up.
Timestamps thus go on with the monotonic clock, whatever happens to the wall
clock::

                        wrong
                     ┌─────────┬──── timestamps: wall + lead, or the last one + 1
    ─────────────────┘         └──── the wall clock, corrected: by_wall()

There are two kinds of due times. A *length of time* ("in 5 s", a back-off, a lease) is counted in
timestamps, which never step back. A *moment* ("at noon") is compared with ``by_wall``, which obeys
a correction at once.

The lead shrinks by a thousandth of the time that passes. Additions by a crash, a fast client or a
new lease thus vanish, and no clock that runs a little too fast drives all others.

A restart must not hand out a timestamp twice, even if the wall clock was set back meanwhile. The
node therefore stores a *ceiling* above every timestamp that it hands out, and starts from it after
a crash. Closing cleanly stores the exact last timestamp instead.

A clock *rests* until it hands out its first timestamp. Until then the stored ceiling itself serves
those who only read: it is above everything that an earlier run has handed out. It is below
everything that will be handed out, in this run or in any other one. Reading a store needs no write,
not even of a ceiling, and still every later commit gets a timestamp above that of every read.

Invariants: ``now`` is strictly increasing; every answer is below the stored ceiling.

The trusted wall clock is the machine's, but for jumps that others contradict. It is compared with
the monotonic clock: their distance (*offset*) is constant until somebody sets the wall clock::

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

import datetime
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from postroom.limits import CLOCK_OFFSET_SECONDS_MAX

LOOK_MILLISECONDS: Final = 250
"""The time between two comparisons of the clocks."""
STEP_MILLISECONDS: Final = 250
"""A smaller difference is no jump: a thread may stand still between two readings."""
JITTER_MILLISECONDS: Final = 2
"""A smaller difference is none at all."""
TIMER_MARGIN_SECONDS: Final = 0.00005
"""The time by which timers ring later than needed, as the rates of both clocks may differ."""


class WallClockJudge(Protocol):
    """A function that tells whether a wall clock is to be believed."""

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
    """A wall clock that is trusted only as far as it goes on like the monotonic one.

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


LOGICAL_BITS: Final = 16
CEILING_MILLISECONDS: Final = 1000
"""The lead with which the ceiling is stored: what a crash may push the clock ahead of the wall."""
LEAD_LOST: Final = 0.001
_ROOM_MILLISECONDS: Final = CLOCK_OFFSET_SECONDS_MAX * 1000
"""The share of passing time by which the lead shrinks: more than two clocks' rates ever differ."""
_AHEAD: Final = CEILING_MILLISECONDS << LOGICAL_BITS

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Timestamp(int):
    """A point in the order of commits: an ``int`` that has a wall clock time.

    Examples:
        >>> before = db.now()
        >>> db.put(b"a", b"1")
        >>> before < db.now()
        True
        >>> before.datetime.tzinfo
        datetime.timezone.utc
    """

    @property
    def datetime(self) -> datetime.datetime:
        """Return the time of the wall clock, aware, in UTC, to the millisecond."""
        return _EPOCH + datetime.timedelta(milliseconds=int(self) >> LOGICAL_BITS)

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


def from_milliseconds(milliseconds: int) -> int:
    """Return the first timestamp of a millisecond."""
    return milliseconds << LOGICAL_BITS


def from_seconds(seconds: float) -> int:
    """Return a length of time in timestamp units."""
    return int(seconds * 1000) << LOGICAL_BITS


def seconds_until(timestamp: int, now: int) -> float:
    """Return how long after ``now`` a timestamp has come, in whole milliseconds; 0: it has."""
    return max(-(now - timestamp >> LOGICAL_BITS), 0) / 1000


def from_datetime(moment: datetime.datetime) -> int:
    """Return the first timestamp at or after an aware ``datetime`` (microseconds round up)."""
    elapsed = moment - _EPOCH
    return from_milliseconds(-(elapsed // datetime.timedelta(milliseconds=-1)))


class TimeSource(Protocol):
    """The node's source of time; a simulation passes its own."""

    def wall_milliseconds(self) -> int:
        """Return the milliseconds since 1970, as far as this machine knows. They may jump."""

    def since_millisecond(self) -> float:
        """Return the seconds since the millisecond of the wall clock began; 0: it does not tell."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start. They never step back."""


_time_ns: Final = time.time_ns


def _wall_milliseconds() -> int:
    return _time_ns() // 1_000_000


def _since_millisecond() -> float:
    return _time_ns() % 1_000_000 / 1e9


class SystemClock:
    """The operating system's clocks."""

    wall_milliseconds = staticmethod(_wall_milliseconds)
    """Milliseconds since 1970."""

    since_millisecond = staticmethod(_since_millisecond)
    """Seconds since the millisecond of the wall clock began."""

    monotonic = staticmethod(time.monotonic)
    """Seconds since an arbitrary start."""


class ClockOffset(Exception):
    """A peer's clock is further ahead than ``max_offset`` allows."""


class HybridLogicalClock(TrustedWall):
    """A clock of strictly increasing timestamps.

    Args:
        wall: milliseconds since 1970.
        monotonic: seconds that never go back.
        ceiling: what an earlier run stored; the first answer is above it.
        store_ceiling: makes a new ceiling durable before it returns, or answers that it cannot;
            called when ``now`` reaches the present one, which ``wanted_ceiling`` in time avoids.
        since_millisecond: returns the seconds since the millisecond of the wall clock began.
    """

    def __init__(
        self,
        wall: Callable[[], int],
        monotonic: Callable[[], float],
        ceiling: int,
        store_ceiling: Callable[[int], bool],
        since_millisecond: Callable[[], float] = float,
    ) -> None:
        self._last = ceiling
        self._ceiling = ceiling
        self._store_ceiling = store_ceiling
        self._since_millisecond = since_millisecond
        self._lead = 0
        self._lead_exactly = 0.0
        self._room = _ROOM_MILLISECONDS
        self._room_at = monotonic()
        self.rests = ceiling > 0
        """True if nothing has been handed out yet."""
        super().__init__(wall, monotonic)
        self._began_at = self._looked_at
        self._lead_to(ceiling)

    def now(self) -> int:
        """Return a timestamp above every earlier one."""
        self.rests = False
        wall = self._wall()
        if not self._known_from <= wall < self._known_until:
            wall = self._look(wall)
        timestamp = (wall + self._lead) << LOGICAL_BITS
        if timestamp <= self._last:
            timestamp = self._last + 1
        if timestamp >= self._ceiling:
            ceiling = timestamp + from_milliseconds(CEILING_MILLISECONDS)
            if self._store_ceiling(ceiling):
                self._ceiling = ceiling
            else:
                # The node is about to stop, and writes nothing more. Until then the clock stays
                # below what is stored, and stands still there: a read above it would see the future
                # of whoever opens the store again.
                timestamp = max(self._last, min(self._last + 1, self._ceiling - 1))
        self._last = timestamp
        return timestamp

    def coming(self, more: int) -> int:
        """Return the timestamp that ``now`` would return; 0: that would have to store a ceiling.

        Args:
            more: how many timestamps after it must lie below the ceiling, too.
        """
        wall = self._wall()
        if not self._known_from <= wall < self._known_until:
            wall = self._look(wall)
        timestamp = (wall + self._lead) << LOGICAL_BITS
        if timestamp <= self._last:
            timestamp = self._last + 1
        return timestamp if timestamp + more < self._ceiling else 0

    def take(self, timestamp: int) -> None:
        """Take the timestamps from ``coming`` up to this one."""
        self.rests = False
        self._last = timestamp

    def following(self) -> int:
        """Return the next timestamp after one that ``now`` has answered a moment ago.

        It is cheaper than ``now``, since the wall clock is not asked.
        """
        timestamp = self._last + 1
        if timestamp >= self._ceiling:
            return self.now()
        self._last = timestamp
        return timestamp

    def read(self) -> int:
        """Return a timestamp to read at: above all commits so far, and below all later ones.

        While the clock rests it is always the same one, and nothing is stored for it.
        """
        return self._last if self.rests else self.now()

    def reading(self) -> int:
        """Return about now, not below any timestamp handed out.

        It may itself be handed out later.
        """
        wall = self._wall()
        if not self._known_from <= wall < self._known_until:
            wall = self._look(wall)
        reading = (wall + self._lead) << LOGICAL_BITS
        last = self._last
        return reading if reading > last else last

    def seconds_until(self, timestamp: int) -> float:
        """Return how long it takes until ``timestamp`` has come; 0: it has.

        It comes with the beginning of a millisecond. A timer must not ring before that, not even by
        a little, or what is due then would have to wait for another one.
        """
        seconds = seconds_until(timestamp, self.reading())
        if not seconds:
            return 0.0
        return seconds - max(self._since_millisecond() - TIMER_MARGIN_SECONDS, 0.0)

    def by_wall(self) -> int:
        """Return about now by the trusted wall clock, with which moments are compared.

        Timestamps may be far ahead of it.
        """
        return self.milliseconds() << LOGICAL_BITS

    def lasting(self) -> int:
        """Return ``reading`` if all answers after a restart will be above it, else 0.

        It is returned, too, while nothing has been handed out yet.
        """
        wall = self._wall()
        if not self._known_from <= wall < self._known_until:
            wall = self._look(wall)
        reading = (wall + self._lead) << LOGICAL_BITS  # ``reading``, in one step
        reading = max(reading, self._last)
        return reading if reading < self._ceiling or self.rests else 0

    def last(self) -> int:
        """Return the greatest timestamp handed out or seen."""
        return self._last

    def update(self, remote: int, offset_seconds_max: float) -> None:
        """Let all further answers be above ``remote``.

        Raises:
            ClockOffset: ``remote`` is further ahead of this clock than allowed.
        """
        if remote > self.reading() + from_seconds(offset_seconds_max):
            raise ClockOffset(f"timestamp {remote} is more than {offset_seconds_max} s ahead")
        self.pass_over(remote)

    def may_follow(self, client: int) -> bool:
        """Return whether this clock may pass over what a client has told, and count it if so.

        Together, clients move it by no more than clocks may differ, and by what the lead loses
        meanwhile. A hostile one cannot drive it on.
        """
        missing = (client >> LOGICAL_BITS) - (self.reading() >> LOGICAL_BITS)
        if missing <= 0:
            return True
        before, self._room_at = self._room_at, self._monotonic()
        regained = 1000 * (self._room_at - before) * LEAD_LOST
        self._room = min(self._room + regained, _ROOM_MILLISECONDS)
        if missing > self._room:
            return False
        self._room -= missing
        return True

    def pass_over(self, timestamp: int) -> None:
        """Let all further answers be above ``timestamp``, which is committed.

        The wall clock does not matter.
        """
        if timestamp > self._last:
            self._last = timestamp
            self.rests = False
            self._lead_to(timestamp)

    def wanted_ceiling(self) -> int | None:
        """Return a higher ceiling, if it should be stored with the next write; else ``None``.

        Storing one in time saves a write of its own.
        """
        if self._last + _AHEAD // 2 < self._ceiling:
            return None
        return self._last + _AHEAD

    def ceiling_stored(self, ceiling: int) -> None:
        """Note that ``ceiling`` is durable."""
        self._ceiling = max(self._ceiling, ceiling)

    # --- the lead

    def _lead_to(self, timestamp: int) -> None:
        """Go on from ``timestamp``, if that is ahead."""
        milliseconds = timestamp >> LOGICAL_BITS
        if milliseconds - self.milliseconds() > self._lead:
            with self._looking:
                self._set_lead(milliseconds - (self._offset + self._monotonic() * 1000))

    def _time_passed(self, trusted: int, milliseconds: float, step: float) -> None:
        if self.rests:  # only what an earlier run has stored counts on how the clock goes on
            earlier = (self._last >> LOGICAL_BITS) + (self._looked_at - self._began_at) * 1000
            self._set_lead(earlier - trusted)
        elif self._lead_exactly or step < 0:
            self._set_lead(self._lead_exactly - step - milliseconds * LEAD_LOST)

    def _set_lead(self, milliseconds: float) -> None:
        self._lead_exactly = max(milliseconds, 0.0)
        self._lead = int(self._lead_exactly)
