"""The changes of queues that come from other ranges (:mod:`.crossing`), each carried out once.

A change of a queue that was dropped meanwhile is left out. A change that can never be carried out,
since its queue is damaged here, becomes a dead letter.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec

from postroom.errors import Invalid, Unavailable, shorten
from postroom.messaging.queues.crossing import (
    EndPointer,
    EnqueueById,
    GrantSlots,
    PlaceMessage,
    PointTo,
    ReplaceMessage,
    ReturnSlots,
    TakeSlots,
    decode,
)
from postroom.messaging.queues.directory import Directory
from postroom.messaging.queues.enqueueing import Enqueueing
from postroom.messaging.queues.records import QueueLayout
from postroom.messaging.queues.slot_moves import SlotMoves
from postroom.messaging.queues.slot_pool import SlotPools
from postroom.messaging.requests import Deliverable
from postroom.ranges.evaluation import Evaluation

AnyChange: TypeAlias = PlaceMessage | EnqueueById | ReplaceMessage | PointTo | EndPointer


class Arrivals:
    """The changes that arrive in one range.

    Args:
        range_id: the id of the range.
        directory: its queues.
        enqueueing: what enqueues in them.
        slots: their slots; ``pools``: at the root, those of all ranges.
    """

    def __init__(
        self,
        range_id: int,
        directory: Directory,
        enqueueing: Enqueueing,
        slots: SlotMoves,
        pools: SlotPools,
    ) -> None:
        self._slots = slots
        self._pools = pools
        self._range_id = range_id
        self._directory = directory
        self._enqueueing = enqueueing

    def take(self, ctx: Evaluation, entry: Deliverable) -> None:
        """Carry out a change.

        Raises:
            Unavailable: it has to wait.
            QueueDamaged, Invalid: it cannot be carried out.
        """
        try:
            change = decode(entry.value)
        except msgspec.DecodeError as error:
            raise Invalid(f"a change of a queue cannot be read: {error}") from error
        ctx.steps += 2
        if not (
            isinstance(change, EndPointer) or self._directory.stands(change.queue, change.number)
        ):
            return
        if isinstance(change, GrantSlots | ReturnSlots | TakeSlots) and self._slots.are_here:
            pass  # they were on their way in a store that was restored into one range
        elif isinstance(change, GrantSlots):
            self._slots.arrive(ctx, self._directory.known(change.queue), change)
        elif isinstance(change, ReturnSlots | TakeSlots):
            self._pools.arrive(ctx, change)
        else:
            self._take_message(ctx, change)

    def _take_message(self, ctx: Evaluation, change: AnyChange) -> None:
        """Carry out a change of a message, or of its pointer."""
        match change:
            case PlaceMessage():
                self._enqueueing.place(ctx, change.message)
            case EnqueueById():
                self._wait_for_commit(change.message.id)
                self._enqueueing.enqueue_sent(ctx, change.message, replaces=change.replaces)
            case ReplaceMessage():
                self._wait_for_commit(change.home)
                self._enqueueing.replace_sent(ctx, change.message, change.home)
            case PointTo():
                ctx.writes[self._pointer(change)] = change.home
                ctx.grow(2 * len(change.home) + len(change.id))
            case EndPointer():
                key = self._pointer(change)
                if ctx.get(key) == change.home:
                    ctx.writes[key] = None
                    ctx.grow(2 * len(change.id))
            case _:
                assert_never(change)

    def _pointer(self, change: PointTo | EndPointer) -> bytes:
        return QueueLayout(self._range_id, change.number).pointer_key(change.kind, change.id)

    def _wait_for_commit(self, key: bytes) -> None:
        """Let what is prepared for a key end first."""
        if self._enqueueing.is_prepared(key):
            raise Unavailable(f"a transaction is prepared that writes {shorten(key)}")
