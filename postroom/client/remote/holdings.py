"""What the leaseholder holds in its memory for this client, as far as the client knows.

While there is anything the router says something every second (:mod:`.link`), or the leaseholder
would take this client for dead, and let go of it. Protections go with their link, and are asked for
again; locks and claims stay for a few seconds without one. If a transaction is neither committed
nor rolled back, the leaseholder lets go of what it holds when its time is over; so does this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.requests import Claimed, Extend
from postroom.messaging.requests import ReapQueue
from postroom.ranges.requests import CommitTransaction, GetForUpdate


class Holdings:
    """Protections and transactions. False if there are none."""

    __slots__ = ("_leased_until", "_protected", "_transactions")

    def __init__(self) -> None:
        self._protected: Counter[int] = Counter()
        self._transactions: dict[bytes, float] = {}
        self._leased_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._protected or self._transactions or self._leased_until)

    def claimed(self, answer: Claimed, reading: int, now: float) -> None:
        """Messages of a queue were leased, or their leases extended.

        When they are given back is not followed: until the last of the leases has passed the client
        goes on to be heard of.
        """
        for each in answer.messages:
            self.leased(((each.leased_until - reading) >> LOGICAL_BITS) / 1000, now)

    def leased(self, seconds: float, now: float) -> None:
        """Something is held for so long."""
        self._leased_until = max(self._leased_until, now + seconds)

    def protect(self, moment: int) -> None:
        """A timestamp is protected, once more."""
        self._protected[moment] += 1

    def unprotect(self, moment: int) -> None:
        """Once less."""
        self._protected[moment] -= 1
        self._protected = +self._protected

    def protected(self) -> Iterator[int]:
        """The timestamps, each as often as it is protected."""
        return self._protected.elements()

    def answered(self, request: Any, answer: Any, now: float) -> None:
        """Something was done for a transaction: it holds something, or nothing any more."""
        kind = type(request)
        if kind is GetForUpdate or (kind is ReapQueue and answer.messages):
            seconds = min(TRANSACTION_SECONDS_MAX, request.seconds_max)
            self._transactions[request.transaction_id] = now + seconds
        elif kind is not ReapQueue:
            self.ended(request.transaction_id)
        if kind is CommitTransaction:
            for write in request.writes:
                if type(write) is Extend:
                    self.leased(write.seconds, now)

    def ended(self, transaction_id: bytes) -> None:
        """It was committed or rolled back, or cannot be."""
        self._transactions.pop(transaction_id, None)

    def let_go(self, now: float) -> None:
        """Of the transactions whose time is over."""
        if self._leased_until <= now:
            self._leased_until = 0.0
        if self._transactions:
            over = [each for each, until in self._transactions.items() if until <= now]
            for transaction_id in over:
                del self._transactions[transaction_id]
