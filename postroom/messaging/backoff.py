"""The back-off after a failure: longer each time, and not equally long for all.

Messages of queues and of inboxes use it. The wait doubles with each failure, between two bounds. It
varies at random by a tenth, so that messages that failed together are not tried together.
"""

from __future__ import annotations

from typing import Final

from postroom.kv.clock import from_seconds
from postroom.limits import DELAY_SECONDS_MAX

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
