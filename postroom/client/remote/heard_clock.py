"""The clock of a remote client: the newest timestamp that it heard, and the time since then.

A client has no clock of its own that others would have to trust. What it reads goes along with its
requests, so that a transaction commits after it began by both clocks; a node refuses what is too
far ahead of its own clock. That can only be when the nodes' clocks were set back: then time stands
still for this client, but for what it hears, until they have caught up.

Invariant: readings never step back, unless one of them was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from postroom.kv.clock import LOGICAL_BITS

STANDSTILL_SECONDS: Final = 10.0


class HeardClock:
    """See the module.

    Args:
        monotonic: seconds that never go back.
    """

    __slots__ = ("_heard", "_monotonic", "_moves_from", "_read")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heard = (0, 0.0)  # one value: other threads may read while it is set
        self._read = 0
        self._moves_from = 0.0

    def heard(self, timestamp: int) -> None:
        """A node's clock stood there, just now."""
        if timestamp > self._heard[0]:
            self._heard = (timestamp, self._monotonic())

    def refused(self, timestamp: int) -> None:
        """What was read last is too far ahead for a node whose clock stands at ``timestamp``."""
        now = self._monotonic()
        self._moves_from = now + STANDSTILL_SECONDS
        self._heard = (timestamp, now)
        self._read = timestamp

    def reading(self) -> int:
        """About now; 0 if nothing was heard yet."""
        reading, at = self._heard
        now = self._monotonic()
        if reading and now >= self._moves_from:
            reading += int((now - at) * 1000) << LOGICAL_BITS
        self._read = reading = max(self._read, reading)
        return reading
