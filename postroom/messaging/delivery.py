"""The delivery of messages into inboxes of the same range, in one write.

Messages come from the outbox, or straight from a commit. Those of one sender range to one key are
delivered in the order of their commits and enter the inbox under their ids. They never overtake
each other. A message that was scheduled for later keeps its id, and thus the place that its commit
had.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.messaging.claims import QUIET
from postroom.messaging.inbox import Arrivals, Inboxes
from postroom.messaging.outbox import Outbox, Parcel
from postroom.messaging.requests import Deliverable, DeliverDue, Delivered, Moved
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry

_encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(Deliverable)


class Delivery:
    """The delivery of messages, new ones as they are committed and those that are due."""

    def __init__(
        self,
        range_id: int,
        outbox: Outbox,
        inboxes: Inboxes,
        wake: Callable[[list[object]], None],
    ) -> None:
        self._sender = keys.u64(range_id)
        self._outbox = outbox
        self._inboxes = inboxes
        self._quiet = partial(wake, [QUIET])

    def register(self, registry: Registry) -> None:
        """Register the delivery."""
        registry.commands[DeliverDue] = self.deliver_due

    def deliver_sent(self, ctx: Evaluation) -> Iterator[None] | None:
        """Deliver the messages that this proposal sends, or store them for later."""
        parcels: list[Parcel] = ctx.sent
        if not parcels:
            return None
        ctx.sent = []
        ctx.count("enqueued", len(parcels))
        left = 0 if self._outbox.has_due(ctx) else limits.DELIVERED_AT_ONCE_MAX
        if len(parcels) > 1 and len(parcels) > _parcels_a_turn():
            return self._take_up_in_parts(ctx, parcels, left)
        self._take_up(ctx, parcels, left)
        return None

    def _take_up_in_parts(
        self, ctx: Evaluation, parcels: list[Parcel], left: int
    ) -> Generator[None, None, None]:
        """Take up the many messages of a transaction, a part of them in each turn."""
        for first in range(0, len(parcels), _parcels_a_turn()):
            left = self._take_up(ctx, parcels[first : first + _parcels_a_turn()], left)
            yield

    def _take_up(self, ctx: Evaluation, parcels: list[Parcel], left: int) -> int:
        """Deliver up to ``left`` parcels that are due, and store the others.

        Return how many more may be delivered.
        """
        arrivals: Arrivals = {}
        now, sender = ctx.timestamp, self._sender
        for due, id_, request, transaction_id, source in parcels:
            if left and due <= now:
                left -= 1
                message = _encode((now, request.value, request.headers))  # a ``Delivered``
                arrived, key = (id_[:8] + sender + id_[8:], message), request.key
                if key in arrivals:
                    arrivals[key].append(arrived)
                else:
                    arrivals[key] = [arrived]
            else:
                entry = Deliverable(
                    request.key, request.value, request.headers, transaction_id, source
                )
                self._outbox.store(ctx, due, id_, entry)
        self._deliver(ctx, arrivals)
        return left

    def deliver_due(self, ctx: Evaluation, request: DeliverDue) -> Moved:
        """Evaluate ``DeliverDue``."""
        outbox, now, sender = self._outbox, ctx.timestamp, self._sender
        due, next_due = outbox.take_due(ctx, request.messages_max)
        arrivals: Arrivals = {}
        for key, stored in due:
            entry = _entries.decode(stored)
            message = _encode(Delivered(now, entry.value, entry.headers, entry.trial))
            id_ = outbox.id_of(key)
            arrivals.setdefault(entry.key, []).append((id_[:8] + sender + id_[8:], message))
            ctx.erase(key)
        if due:
            self._deliver(ctx, arrivals)
            outbox.advance(ctx, [key for key, _ in due])
            ctx.count(outbox.pending, -len(due))
        ctx.after.append(self._quiet)
        return Moved(len(due), 0 < next_due <= now, next_due)

    def _deliver(self, ctx: Evaluation, arrivals: Arrivals) -> None:
        if arrivals:
            ctx.count("delivered", self._inboxes.deliver(ctx, arrivals))


def _parcels_a_turn() -> int:
    """Return how many parcels a turn takes: each of them is a read and a write."""
    return max(limits.TURN_STEPS_MAX // 2, 1)
