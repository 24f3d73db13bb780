"""The departure of changes of queues from their range (:mod:`.crossing`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from postroom.kv import keys
from postroom.messaging.handover.outgoing import Outgoing
from postroom.messaging.queues.crossing import (
    AnyCrossing,
    EndPointer,
    PlaceMessage,
    PointTo,
    ReplaceMessage,
    encode,
)
from postroom.messaging.queues.records import Locator
from postroom.messaging.requests import Deliverable
from postroom.ranges.evaluation import Evaluation


class Departures:
    """The way of changes of queues out of one range.

    Args:
        range_id: the id of the range.
        outgoing: the outgoing messages of the range.

    Attributes:
        has_sent: a function that takes the id of a transaction that is committed, and where the
            entry lies in the outbox that enqueues its message in another range.
    """

    def __init__(self, range_id: int, outgoing: Outgoing) -> None:
        self._sender = keys.u64(range_id)
        self._outgoing = outgoing
        self.has_sent: Callable[[bytes, bytes], None] = lambda transaction_id, at: None

    def is_elsewhere(self, key: bytes) -> bool:
        """Return whether what lies under a key is changed by an outgoing entry."""
        outgoing = self._outgoing
        return outgoing.may_go_out() and outgoing.goes_out(key)

    def may_cross(self) -> bool:
        """Return whether anything may be elsewhere."""
        return self._outgoing.may_go_out()

    def check_room(self, key: bytes) -> None:
        """Check that a transaction may send something to a key.

        Raises:
            OutboxFull: it is for another range, and too much is on its way already.
        """
        if self.is_elsewhere(key):
            self._outgoing.check_room()

    def send(self, ctx: Evaluation, key: bytes, change: AnyCrossing) -> None:
        """Let a change go out to the range of a key."""
        id_ = ctx.stamp + self._sender + ctx.next_ordinal()
        entry = Deliverable(
            key, encode(change), None, ctx.transaction_id, ctx.source, is_of_queue=True
        )
        at = self._outgoing.store(ctx, id_, entry)
        if ctx.transaction_id and isinstance(change, PlaceMessage | ReplaceMessage):
            ctx.after.append(partial(self.has_sent, ctx.transaction_id, at))
        ctx.count("enqueued")
        ctx.steps += 1

    def point(self, ctx: Evaluation, queue: str, number: int, locator: Locator) -> None:
        """Have the range of an id point to its message."""
        home, kind, id_ = locator
        self.send(ctx, id_, PointTo(queue, number, home, kind, id_))

    def end_pointer(self, ctx: Evaluation, queue: str, number: int, locator: Locator) -> None:
        """Have the range of an id forget its message."""
        home, kind, id_ = locator
        self.send(ctx, id_, EndPointer(queue, number, home, kind, id_))
