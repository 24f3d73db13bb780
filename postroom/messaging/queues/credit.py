"""The consumers that have no credit left, and wait until one of their messages is over.

A consumer knows of the messages that it settles itself. A message can also be settled by its id, in
another transaction or by an operator. Only the leaseholder sees that. Therefore a consumer without
credit asks it: :class:`ClaimQueue` with ``in_hand`` is answered once one of these attempts is over.

Consumers that wait make a commit no slower: the table of leases looks its consumer up here.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from postroom.messaging.queues.requests import ClaimQueue


class CreditToken(NamedTuple):
    """The token for which a consumer without credit waits.

    Attributes:
        consumer: its id.
    """

    consumer: bytes


class CreditWaits:
    """The requests that wait for credit. Its length is their number."""

    def __init__(self) -> None:
        self._requests: dict[int, ClaimQueue] = {}
        self._consumers: Counter[bytes] = Counter()
        self._freed: dict[CreditToken, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: ClaimQueue) -> CreditToken:
        """Return the token that ``request`` waits for; it may wait for it already."""
        if id(request) not in self._requests:
            self._requests[id(request)] = request
            self._consumers[request.consumer] += 1
        return CreditToken(request.consumer)

    def remove(self, request: ClaimQueue) -> None:
        """Forget a request: it is answered, or nobody waits for its answer any more."""
        if self._requests.pop(id(request), None) is None:
            return
        self._consumers[request.consumer] -= 1
        if not self._consumers[request.consumer]:
            del self._consumers[request.consumer]

    def freed(self, consumer: bytes) -> None:
        """Note that a consumer holds fewer messages; do nothing if it does not wait."""
        if consumer in self._consumers:
            self._freed[CreditToken(consumer)] = None

    def take_freed(self) -> list[object]:
        """Return the tokens of the consumers that hold fewer messages than before, each once."""
        taken: list[object] = list(self._freed)
        self._freed.clear()
        return taken

    def clear(self) -> None:
        """Forget all requests, at the end of the lease."""
        self._requests.clear()
        self._consumers.clear()
        self._freed.clear()
