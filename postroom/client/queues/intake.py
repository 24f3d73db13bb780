"""The messages that a consumer holds, and how many more it may ask for.

::

    claimed ──▶ waiting ── taken ──▶ in hand ─┬─ settled, by this consumer or by anybody else
                   │                          └─ its lease has passed
                   └─ half of the lease has passed ──▶ given back, uncounted

*Credit* is how many messages a consumer may hold without having settled them. A message whose lease
has passed belongs to another consumer, and takes no credit any more.

*Pace.* Messages that wait here age: their lease runs. A consumer that takes a hundred messages and
needs a second for each would lose most of them. Each loss counts as a failed attempt of a message
that no function has seen. Thus the consumer asks for one message first. After a batch that took
less than a quarter of a lease it asks for twice as many. After a batch that took longer than half
of a lease it asks for half as many. A message that still waits when half of its lease has passed is
given back, as if it had not been claimed.

The code is plain and synchronous. Several threads may call its methods, since many threads may work
on the messages of one consumer.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from postroom.client.queues.messages import AnyMessage, QueueMessage


@dataclass(slots=True)
class _Waiting:
    message: QueueMessage
    late_at: float
    until: float


class Intake:
    """The messages of one consumer.

    Args:
        credit: how many it may hold at a time.
    """

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._waiting: deque[_Waiting] = deque()
        self._in_hand: dict[AnyMessage, float] = {}
        self._lock = threading.Lock()
        self._batch = 1
        self._began = 0.0
        self._lease_seconds = 0.0

    def wanted(self, now: float) -> int:
        """Return how many messages to ask for now; 0: no credit is left, or some messages wait."""
        with self._lock:
            if self._waiting:
                return 0
            self._in_hand = {each: until for each, until in self._in_hand.items() if until > now}
            self._pace(now)
            return min(self._batch, self._credit - len(self._in_hand))

    def _pace(self, now: float) -> None:
        if not self._lease_seconds:
            return
        took, lease = now - self._began, self._lease_seconds
        self._lease_seconds = 0.0
        if took > lease / 2:
            self._batch = max(self._batch // 2, 1)
        elif took < lease / 4:
            self._batch = min(2 * self._batch, self._credit)

    def in_hand(self, most: int) -> list[AnyMessage]:
        """Return the messages that have been in hand for longest."""
        with self._lock:
            return list(islice(self._in_hand, most))

    def frees_at(self) -> float | None:
        """Return when the first lease in hand passes; ``None``: nothing is in hand."""
        with self._lock:
            return min(self._in_hand.values(), default=None)

    def claimed(self, messages: list[QueueMessage], lease_seconds: list[float], now: float) -> None:
        """Add claimed messages.

        Args:
            messages: in the order in which they are to be handed out.
            lease_seconds: for how long each of them is held.
            now: the client's monotonic clock, in seconds.
        """
        with self._lock:
            for message, seconds in zip(messages, lease_seconds, strict=True):
                self._waiting.append(_Waiting(message, now + seconds / 2, now + seconds))
            if messages:
                self._began, self._lease_seconds = now, min(lease_seconds)

    def take(self, now: float) -> QueueMessage | None:
        """Return the next message to work on; ``None``: there is none that is fresh enough."""
        with self._lock:
            if not self._waiting or self._waiting[0].late_at <= now:
                return None
            first = self._waiting.popleft()
            self._in_hand[first.message] = first.until
            return first.message

    def take_back(self) -> list[QueueMessage]:
        """Return all waiting messages, and forget them: the caller gives them back."""
        with self._lock:
            late = [each.message for each in self._waiting]
            self._waiting.clear()
            return late

    def settled(self, message: AnyMessage) -> None:
        """Free the credit of a message."""
        with self._lock:
            self._in_hand.pop(message, None)

    def extended(self, message: AnyMessage, until: float) -> None:
        """Note that the lease of a message passes at ``until``."""
        with self._lock:
            if message in self._in_hand:
                self._in_hand[message] = until

    @property
    def waiting(self) -> int:
        """Return how many messages wait to be taken."""
        return len(self._waiting)
