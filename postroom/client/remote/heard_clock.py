"""The clock of a remote client: the newest timestamp that it heard, and the time since then.

A client has no clock of its own that others would have to trust. What it reads goes along with its
requests, so that a transaction commits after it began by both clocks; a node refuses what is too
far ahead of its own clock. That can only be when the nodes' clocks were set back, and stand until
the wall clocks have caught up: for a moment, or for an hour. Then time stands still for this
client, but for what it hears, until it has heard theirs move as time does; else whatever began
after a pause would begin in their future, again and again.

Invariant: readings never step back, unless one of them was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.kv.clock import LOGICAL_BITS

WATCHED_SECONDS: Final = 5.0
"""A clock that stood is compared with the time that has passed once so much of it has. That is more
than twice what a lease is ahead of the wall clock, by which a new leader's clock jumps."""


class HeardClock:
    """See the module.

    Args:
        monotonic: seconds that never go back.
    """

    __slots__ = ("_heard", "_monotonic", "_read", "_stood")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heard = (0, 0.0)  # one value: other threads may read while it is set
        self._read = 0
        self._stood: tuple[int, float] | None = None

    def heard(self, timestamp: int) -> None:
        """A node's clock stood there, just now."""
        now = self._monotonic()
        if self._stood is not None:
            self._watch(self._stood, timestamp, now)
        if timestamp > self._heard[0]:
            self._heard = (timestamp, now)

    def _watch(self, stood: tuple[int, float], timestamp: int, now: float) -> None:
        """Whether the nodes' clock moves again."""
        then, since = stood
        seconds = now - since
        if seconds >= WATCHED_SECONDS:
            passed = ((timestamp - then) >> LOGICAL_BITS) / 1000
            self._stood = None if passed >= seconds / 2 else (timestamp, now)

    def refused(self, timestamp: int) -> None:
        """What was read last is too far ahead for a node whose clock stands at ``timestamp``."""
        self._heard = self._stood = (timestamp, self._monotonic())
        self._read = timestamp

    def reading(self) -> int:
        """About now; 0 if nothing was heard yet."""
        reading, at = self._heard
        if reading and self._stood is None:
            reading += int((self._monotonic() - at) * 1000) << LOGICAL_BITS
        self._read = reading = max(self._read, reading)
        return reading
