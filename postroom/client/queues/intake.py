"""What a consumer holds, and how much more it may ask for.

::

    claimed ──▶ waiting ── taken ──▶ in hand ─┬─ settled
                   │                          └─ its lease has passed
                   └─ half of the lease has passed ──▶ given back, uncounted

*Credit* is how many messages a consumer may hold without having settled them. One whose lease has
passed is another consumer's, and takes no credit any more.

*Pace.* What waits here ages: its lease runs. A consumer that takes a hundred messages and needs a
second for each would lose most of them, and each loss counts as a failed attempt of a message that
nobody has looked at. So it asks for one message first, for twice as many after each batch that it
has worked off in a quarter of a lease, and for half as many after one that took longer than half of
a lease. What is still waiting when half of its lease has passed is given back, as if it had not
been claimed.

Plain synchronous code. Its methods may be called by several threads: messages of one consumer may
be worked on by many.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

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
        """How many messages to ask for now; 0: there is no credit left, or some are waiting."""
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

    def frees_at(self) -> float | None:
        """When the first lease passes of what is in hand; ``None``: nothing is."""
        with self._lock:
            return min(self._in_hand.values(), default=None)

    def claimed(self, messages: list[QueueMessage], lease_seconds: list[float], now: float) -> None:
        """These have come.

        Args:
            messages: in the order in which they are to be handed out.
            lease_seconds: for how long each of them is held.
            now: seconds that never go back.
        """
        with self._lock:
            for message, seconds in zip(messages, lease_seconds, strict=True):
                self._waiting.append(_Waiting(message, now + seconds / 2, now + seconds))
            if messages:
                self._began, self._lease_seconds = now, min(lease_seconds)

    def take(self, now: float) -> QueueMessage | None:
        """The next message to work on; ``None``: there is none that is fresh enough."""
        with self._lock:
            if not self._waiting or self._waiting[0].late_at <= now:
                return None
            first = self._waiting.popleft()
            self._in_hand[first.message] = first.until
            return first.message

    def take_back(self) -> list[QueueMessage]:
        """Everything that waits: it is to be given back."""
        with self._lock:
            late = [each.message for each in self._waiting]
            self._waiting.clear()
            return late

    def settled(self, message: AnyMessage) -> None:
        """It takes no credit any more."""
        with self._lock:
            self._in_hand.pop(message, None)

    def extended(self, message: AnyMessage, until: float) -> None:
        """Its lease passes later."""
        with self._lock:
            if message in self._in_hand:
                self._in_hand[message] = until

    @property
    def waiting(self) -> int:
        """How many messages wait to be taken."""
        return len(self._waiting)
