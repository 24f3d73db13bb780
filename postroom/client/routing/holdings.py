"""The things that a leaseholder holds in memory for this client, as far as the client knows.

Each lane (:mod:`.lanes`) has those of its range.

While there are any, the router sends something every second (:mod:`.links`). Otherwise the
leaseholder would take this client for dead, and free them. Protections end with their link, and are
requested again; locks and claims stay for a few seconds without a link. If a transaction is neither
committed nor rolled back, the leaseholder frees what it holds when its time is over; this module
does the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.claim_requests import Claimed
from postroom.messaging.queues.requests import Extend
from postroom.messaging.requests import ReapQueue
from postroom.ranges.requests import CommitTransaction

GIVEN_BACK_KEPT: Final = 10_000
"""The number of protections given back to nobody that are kept in mind."""


class Holdings:
    """The protections and transactions of this client at one range. False if there are none.

    Args:
        locking: those of all ranges.

    Attributes:
        locking: the transactions for whose end others may wait.
    """

    __slots__ = ("_given_back", "_leased_until", "_protected", "_transactions", "_whole", "locking")

    def __init__(self, locking: set[bytes]) -> None:
        self._protected: Counter[int] = Counter()
        self._given_back: list[int] = []
        self._whole: set[int] = set()
        self._transactions: dict[bytes, float] = {}
        self.locking = locking
        self._leased_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._protected or self._whole or self._transactions or self._leased_until)

    def take_over(self, other: Holdings) -> None:
        """Note that this range has keys of another one, which holds something for this client.

        Protections stay where they are.
        """
        self._transactions |= other._transactions
        self._leased_until = max(self._leased_until, other._leased_until)

    def holds_for(self, transaction_id: bytes) -> bool:
        """Return whether the transaction may hold something at this range."""
        return transaction_id in self._transactions

    def claimed(self, answer: Claimed, transaction_id: bytes | None, now: float) -> None:
        """Note that messages of a queue were leased, perhaps to a transaction.

        This module does not follow when they are given back: the client gives signs of life until
        the last of the leases has passed.
        """
        for each in answer.messages:
            self.leased(each.lasts / 1000, now)
        if transaction_id is not None and answer.messages:
            self._transactions[transaction_id] = now + TRANSACTION_SECONDS_MAX

    def leased(self, seconds: float, now: float) -> None:
        """Note that a message is held for ``seconds``."""
        self._leased_until = max(self._leased_until, now + seconds)

    def protect(self, timestamp: int) -> None:
        """Count a protection of a timestamp."""
        self._protected[timestamp] += 1

    def unprotect(self, timestamp: int) -> None:
        """Uncount a protection of a timestamp."""
        self._protected[timestamp] -= 1
        self._protected = +self._protected

    def given_back(self, timestamp: int) -> None:
        """Note that a protection was given back while it was not known which node leads.

        If the same one goes on to lead, it still protects the timestamp.
        """
        if len(self._given_back) < GIVEN_BACK_KEPT:
            self._given_back.append(timestamp)

    def take_given_back(self) -> list[int]:
        """Return these, and forget them."""
        taken, self._given_back = self._given_back, []
        return taken

    def protect_whole(self, timestamp: int) -> None:
        """Note that the range is protected as a whole; its end with the link is not noted."""
        self._whole.add(timestamp)

    def release_whole(self, timestamp: int) -> None:
        """Note that the range is not protected as a whole any more."""
        self._whole.discard(timestamp)

    def protected(self) -> Iterator[int]:
        """Return the timestamps, each as often as it is protected."""
        return self._protected.elements()

    def answered(self, request: Any, answer: Any, now: float) -> None:
        """Note the answer to a transaction's request: it holds something, or nothing any more."""
        kind = type(request)
        if request.locks and (kind is not ReapQueue or answer.messages):
            seconds = min(TRANSACTION_SECONDS_MAX, request.seconds_max)
            self._transactions[request.transaction_id] = now + seconds
            if kind is not ReapQueue:
                self.locking.add(request.transaction_id)
        elif kind is not ReapQueue:
            self.ended(request.transaction_id)
        if kind is CommitTransaction:
            for write in request.writes:
                if type(write) is Extend:
                    self.leased(write.seconds, now)

    def ended(self, transaction_id: bytes) -> None:
        """Note that a transaction was committed or rolled back, or cannot be."""
        self._transactions.pop(transaction_id, None)
        self.locking.discard(transaction_id)

    def let_go(self, now: float) -> None:
        """Forget the transactions and leases whose time is over."""
        if self._leased_until <= now:
            self._leased_until = 0.0
        if self._transactions:
            over = [each for each, until in self._transactions.items() if until <= now]
            for transaction_id in over:
                self.ended(transaction_id)
