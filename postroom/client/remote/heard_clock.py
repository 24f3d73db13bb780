"""The clock of a remote client: the newest timestamp that it heard, and the time since then.

A client has no clock of its own that others would have to trust. Its readings go along with its
requests, so that a transaction commits after it began by both clocks. A node refuses a reading that
is too far ahead of its own clock. The cause is that another node's clock was ahead, or that the
node's own clock runs slower than the client's.

Then the client's clock stands still, except for timestamps that it hears, until the nodes' clock
has moved as time does. Otherwise each transaction after a pause would begin in the nodes' future,
again and again.

Invariant: readings never step back, unless one of them was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.kv.clock import LOGICAL_BITS

WATCHED_SECONDS: Final = 5.0
"""The time after which a clock that stood is compared with the time that has passed, in seconds.

It is more than twice the time that a lease is ahead of the wall clock, by which a new leader's
clock jumps.
"""


class HeardClock:
    """The clock of a remote client.

    Args:
        monotonic: returns seconds that never go back.
    """

    __slots__ = ("_heard", "_monotonic", "_read", "_stood")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heard = (0, 0.0)  # one value: other threads may read while it is set
        self._read = 0
        self._stood: tuple[int, float] | None = None

    def heard(self, timestamp: int) -> None:
        """Note that a node's clock showed ``timestamp`` just now."""
        now = self._monotonic()
        if self._stood is not None:
            self._watch(self._stood, timestamp, now)
        if timestamp > self._heard[0]:
            self._heard = (timestamp, now)

    def _watch(self, stood: tuple[int, float], timestamp: int, now: float) -> None:
        """Go on if the nodes' clock moves again."""
        then, since = stood
        seconds = now - since
        if seconds >= WATCHED_SECONDS:
            passed = ((timestamp - then) >> LOGICAL_BITS) / 1000
            self._stood = None if passed >= seconds / 2 else (timestamp, now)

    def refused(self, timestamp: int) -> None:
        """Stand still: a node whose clock shows ``timestamp`` has refused the last reading."""
        self._heard = self._stood = (timestamp, self._monotonic())
        self._read = timestamp

    def reading(self) -> int:
        """Return about now as a timestamp; 0 if nothing was heard yet."""
        reading, at = self._heard
        if reading and self._stood is None:
            reading += int((self._monotonic() - at) * 1000) << LOGICAL_BITS
        self._read = reading = max(self._read, reading)
        return reading
