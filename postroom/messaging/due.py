"""The due times of messages: at once, after a length of time, at a moment; and the back-off.

A *due time* is a number of 64 bits, in requests and in stored records::

    0                        at once
    01 length                in requests: so many milliseconds after the request is evaluated
    00 timestamp             after a length of time: when timestamps have come there
    1  moment                when the trusted wall clock shows it (:mod:`postroom.kv.clock`)

A length is counted in timestamps, which go on with the monotonic clock, whatever happens to the
wall clock. A moment obeys the wall clock, and a correction of it at once.

Invariant: the earlier of two due times of a kind is the lesser number.

The back-off after a failure is longer each time, and not equally long for all.

Messages of queues and of inboxes use it. The wait doubles with each failure, between two bounds. It
varies at random by a tenth, so that messages that failed together are not tried together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.limits import DELAY_SECONDS_MAX

MOMENT: Final = 1 << 63
LENGTH: Final = 1 << 62
LATEST: Final = LENGTH - 1
"""The greatest timestamp after a length of time."""
LOOK: Final = 1000 << LOGICAL_BITS
"""The length within which a change of the wall clock is noticed."""


def at(timestamp: int) -> int:
    """Return the due time of a moment: the least one that is not before ``timestamp``."""
    return MOMENT | (min(timestamp, (1 << 64) - 2) + 1 >> 1)


def after(milliseconds: int) -> int:
    """Return the due time of a length of time, for a request."""
    return LENGTH | min(milliseconds, LENGTH - 1)


def shown(due: int) -> int:
    """Return a stored due time as a timestamp."""
    return (due & ~MOMENT) << 1 if due & MOMENT else due


def resolved(due: int, now: int, by_wall: Callable[[], int]) -> int:
    """Return a requested due time as it is stored; 0: it is due.

    Args:
        due: the requested due time.
        now: the timestamp of the evaluation.
        by_wall: the trusted wall clock.
    """
    if due & MOMENT:
        return due if shown(due) > by_wall() else 0
    if due & LENGTH:
        # A clock that has gone on by exactly this length has reached it, whatever its logical part.
        length = due & ~LENGTH
        due = min(((now >> LOGICAL_BITS) + length) << LOGICAL_BITS, LATEST) if length else 0
    return due if due > now else 0


def passed(due: int, now: int, by_wall: Callable[[], int]) -> int:
    """Return the timestamp at which a due entry became due."""
    return now - max(by_wall() - shown(due), 0) if due & MOMENT else due


def look_at(due: int, now: int, by_wall: Callable[[], int]) -> int:
    """Return the timestamp at which to read an entry with a due time.

    For a moment that is never far off, since the wall clock may be set.
    """
    if not due & MOMENT:
        return due
    return now + min(max(shown(due) - by_wall(), 0), LOOK)


JITTER: Final = 0.1
_DOUBLINGS: Final = 40


def jittered_backoff(base: float, failures: int, least: float, most: float, chance: float) -> float:
    """Return the wait before the next attempt, in seconds.

    Args:
        base: seconds after the first failure.
        failures: how many there were before this one.
        least, most: bounds, in seconds.
        chance: a random number from 0 up to 1.
    """
    seconds = min(max(base * 2.0 ** min(failures, _DOUBLINGS), least), most)
    seconds *= 1 - JITTER + 2 * JITTER * chance
    return min(max(seconds, least), most)


def due_after(now: int, seconds: float) -> int:
    """Return the timestamp ``seconds`` after ``now``."""
    return now + from_seconds(min(seconds, DELAY_SECONDS_MAX))


def earliest(*timestamps: int) -> int:
    """Return the first of some timestamps; 0 stands for none."""
    return min(filter(None, timestamps), default=0)
