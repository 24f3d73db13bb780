"""Who waits for messages of a queue, and who of them gets the next one.

::

    ClaimQueue ─▶ waits ── a proposal leases messages to it ── applied ─▶ granted ─▶ answered
                    └─ cancelled, or its client has gone ─▶ given up; what it got goes back

A claim is a read that may have to wait. What it waits for is its own: a :class:`Waiter` is the
token of its call. Of those that wait, the one whose consumer holds fewest messages is served next,
and among equals the one that was served longest ago. So messages go round, and a slow consumer gets
fewer. A consumer is known here as long as it waits; what it holds is in the table of leases.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from postroom.messaging.queues.leases import LeaseTable
from postroom.messaging.queues.records import Entry
from postroom.messaging.queues.requests import ClaimQueue, QueueMessage, Selection
from postroom.ranges.requests import CLIENT_ID_BYTES


class Wish:
    """What a consumer takes, by its selection.

    Args:
        selection: as the consumer gave it.
        headers: reads the headers of a message.

    Attributes:
        kinds, looks_closer: see :class:`.turns.Wants`.
        cursor: how far the stored messages were looked through for those that are not in memory;
            ``None``: to the end.
    """

    __slots__ = (
        "_end", "_headers", "_missed", "_start", "_where", "cursor", "kinds", "looks_closer",
    )  # fmt: skip

    def __init__(
        self, selection: Selection, headers: Callable[[Entry], dict[str, Any] | None]
    ) -> None:
        self._start, self._end = selection.start, selection.end
        self._where = selection.where or {}
        self._headers = headers
        self.kinds = None if selection.kinds is None else frozenset(selection.kinds)
        self.looks_closer = bool(self._where or self._start or self._end is not None)
        self.cursor: bytes | None = b""
        self._missed: bytes | None = None

    def misses(self, key: bytes) -> None:
        """It takes the message there, but the group of that may not fire just now."""
        if self._missed is None or key < self._missed:
            self._missed = key

    def look_again(self) -> None:
        """From the first one that was missed."""
        missed, self._missed = self._missed, None
        if missed is not None and (self.cursor is None or missed < self.cursor):
            self.cursor = missed

    def takes(self, entry: Entry) -> bool:
        """Whether this is one of them."""
        if self.kinds is not None and entry.kind not in self.kinds:
            return False
        if not self.looks_closer:
            return True
        if entry.key < self._start or (self._end is not None and entry.key >= self._end):
            return False
        if not self._where:
            return True
        headers = self._headers(entry) or {}
        return all(name in headers and headers[name] == self._where[name] for name in self._where)

    def may_take(self, entry: Entry) -> bool:
        """Whether it is one of them, as far as the entry tells."""
        if self.kinds is not None and entry.kind not in self.kinds:
            return False
        return entry.key >= self._start and (self._end is None or entry.key < self._end)


def takes_all(selection: Selection) -> bool:
    """Whether a selection leaves nothing out."""
    return not (
        selection.start
        or selection.end is not None
        or selection.kinds is not None
        or selection.where
    )


class Waiter:
    """One claim that waits: also the token of its call.

    Attributes:
        request: the claim.
        wish: what it takes; ``None``: anything.
        messages: what a proposal leases to it, and their ``size`` in bytes.
        granted: whether that is applied, or it is to be answered without any: it is answered.
        refused: the error that it is answered.
        looked_at: the state of memory at which there was nothing for it.
        busy: how many messages its consumer holds.
    """

    __slots__ = (
        "busy", "client", "granted", "looked_at", "messages", "refused", "request", "size",
        "turn", "wish",
    )  # fmt: skip

    def __init__(self, request: ClaimQueue, wish: Wish | None) -> None:
        self.request = request
        self.client = request.consumer[:CLIENT_ID_BYTES]
        self.wish = wish
        self.messages: list[QueueMessage] = []
        self.size = 0
        self.granted = False
        self.refused: Exception | None = None
        self.looked_at = 0
        self.turn = 0
        self.busy = 0


Placed: TypeAlias = tuple[int, int, Waiter]
"""Who waits, in line: how many it holds, and when it was served last. No two are alike."""


class Consumers:
    """The claims on one queue that wait. Its length is their number."""

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases
        self._waiters: dict[int, Waiter] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters.values())

    def of(self, request: ClaimQueue) -> Waiter | None:
        """The one that this very request has become."""
        waiter = self._waiters.get(id(request))
        return waiter if waiter is not None and waiter.request is request else None

    def add(self, waiter: Waiter) -> None:
        """Another one waits."""
        self._turn += 1
        waiter.turn = self._turn
        self._waiters[id(waiter.request)] = waiter

    def remove(self, waiter: Waiter) -> None:
        """It was answered, or is given up."""
        self._waiters.pop(id(waiter.request), None)

    def clear(self) -> list[Waiter]:
        """Nobody waits any more; answers who did."""
        waited = list(self._waiters.values())
        self._waiters.clear()
        return waited

    def line(self, additions: int, *, is_complete: bool) -> list[Placed]:
        """Those for whom there may be something, as a heap: who is first is served next.

        Args:
            additions: of the messages in memory.
            is_complete: whether there are no others.
        """
        held_by = self._leases.held_by
        line = []
        for waiter in self._waiters.values():
            if waiter.granted or waiter.messages:
                continue
            wish = waiter.wish
            looks_on = wish is not None and wish.cursor is not None and not is_complete
            if looks_on or waiter.looked_at != additions:
                waiter.busy = held_by(waiter.request.consumer)
                line.append((waiter.busy, waiter.turn, waiter))
        heapq.heapify(line)
        return line

    def served(self, waiter: Waiter) -> None:
        """It was given a message: others come first now, if they hold as few."""
        self._turn += 1
        waiter.turn = self._turn
        waiter.busy += 1
