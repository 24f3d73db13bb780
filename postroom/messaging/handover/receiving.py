"""The evaluators of both ends of a channel: a batch is taken once, and what is taken is deleted.

::

    all entries above the marks of their keys   taken: inboxes, or updates, and the marks: one write
    all entries at or below them                known: it has been taken before
    some of them                                refused: the sender leaves out what is known

Each of the three is answered with the marks, which always tell what came out of a batch. It may be
lost, doubled, delayed, or sent again by a deposed leaseholder of the sender.

The sender deletes exactly the entries whose positions are covered by marks that it was told. It
needs no memory: what it does not know to be taken it sends again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.messaging.handover import marks
from postroom.messaging.handover.marks import Marks, mark_of
from postroom.messaging.handover.outgoing import key_of
from postroom.messaging.handover.parts import first_key, is_within, new_parts, spans_of
from postroom.messaging.handover.positions import WHEN_BYTES, id_in
from postroom.messaging.handover.requests import DropHandedOver, HandOver
from postroom.messaging.moving import Delivery, Execution
from postroom.messaging.outbox import QUIET, Outboxes
from postroom.messaging.requests import Deliverable, Executable
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry


class HandedOver:
    """The entries that ranges hand over to each other, on the side of one range.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        outboxes: its outboxes.
        delivery: the delivery into its inboxes.
        execution: the execution of updates.
        wake: a function that answers the requests that wait for tokens.
    """

    def __init__(
        self,
        range_id: int,
        bounds: Bounds,
        outboxes: Outboxes,
        delivery: Delivery,
        execution: Execution,
        wake: Callable[[list[object]], None],
    ) -> None:
        self._range_id = range_id
        self._sender = keys.u64(range_id)
        self._bounds = bounds
        self._outboxes = outboxes
        self._delivery = delivery
        self._execution = execution
        self._wake = wake

    def register(self, registry: Registry) -> None:
        """Register the evaluators."""
        registry.commands[HandOver] = self.hand_over
        registry.commands[DropHandedOver] = self.drop

    def hand_over(self, ctx: Evaluation, request: HandOver) -> Marks:
        """Evaluate ``HandOver``.

        Raises:
            WrongRange: some of its span belongs to another range.
            Unavailable: it comes from the future of this range's clock.
            Invalid: it is no batch.
        """
        start, end = request.start, request.end
        self._bounds.check(request)
        entries: Sequence[tuple[bytes, Deliverable | Executable]]
        entries = request.updates if request.channel.has_updates else request.messages
        _check_batch(entries, start, end)
        if entries and entries[-1][0][:WHEN_BYTES] >= ctx.stamp:
            raise Unavailable("the clock of the sending range is ahead; nothing was taken")
        record = marks.record_key(self._range_id, request.channel)
        known = marks.decode(ctx.get(record))
        ctx.steps += len(entries)
        if entries and all(_is_new(known, *entry) for entry in entries):
            if request.channel.has_updates:
                self._take_updates(ctx, request, known)
            else:
                self._delivery.receive(ctx, [(id_in(at), each) for at, each in request.messages])
            known = marks.raised(known, start, end, entries[-1][0])
            ctx.writes[record] = stored = marks.encode(known)
            ctx.grow(len(record) + len(stored))
        return marks.within(known, start, end)

    def _take_updates(self, ctx: Evaluation, request: HandOver, known: Marks) -> None:
        """Take updates, or those parts of them that are new; a further part gets an id here.

        They are due in their order, whatever their ids are. Those of the range itself come back to
        their places: those behind them have waited meanwhile, or gone out, too.
        """
        updates: list[tuple[bytes, int, Executable]] = []
        received = 0
        is_own = request.channel.sender == self._range_id
        for position, entry in request.updates:
            for part in new_parts(entry.request, known, position):
                id_ = id_in(position)
                due = ctx.timestamp + len(updates)
                if is_own:
                    due = max(entry.due, int.from_bytes(id_[:WHEN_BYTES], "big"))
                is_first = first_key(part) == key_of(entry) and position not in request.further
                received += is_first
                if not is_first:
                    id_ = ctx.stamp + self._sender + ctx.next_ordinal()
                updates.append((id_, due, msgspec.structs.replace(entry, request=part)))
        ctx.count("received", received)
        ctx.count("enqueued", len(updates) - received)
        self._execution.receive(ctx, updates)

    def drop(self, ctx: Evaluation, request: DropHandedOver) -> int:
        """Evaluate ``DropHandedOver``."""
        outboxes = self._outboxes
        outbox = outboxes.executable if request.are_updates else outboxes.deliverable
        ctx.after.append(lambda: self._wake([QUIET]))
        return outbox.outgoing.drop(ctx, request.positions)


def _check_batch(
    entries: Sequence[tuple[bytes, Deliverable | Executable]], start: bytes, end: bytes | None
) -> None:
    if not all(before < after for (before, _), (after, _) in pairwise(entries)):
        raise Invalid("the positions of a batch do not rise; nothing was taken")
    for _, entry in entries:
        if not _is_inside(entry, start, end):
            raise Invalid("a batch has an entry whose key is not in its span; nothing was taken")


def _is_inside(entry: Deliverable | Executable, start: bytes, end: bytes | None) -> bool:
    if isinstance(entry, Deliverable):
        return start <= entry.key and (end is None or entry.key < end)
    return bool(spans_of(entry.request)) and is_within(entry.request, start, end)


def _is_new(known: Marks, position: bytes, entry: Deliverable | Executable) -> bool:
    """Return whether an entry, or a part of it, lies above the marks of its keys."""
    if isinstance(entry, Deliverable):
        return position > mark_of(known, entry.key)
    return any(True for _ in new_parts(entry.request, known, position))
