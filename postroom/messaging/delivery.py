"""``DeliverDue``: moves due messages from the outbox to inboxes of the same range, in one write.

Messages of one sender range to one key are taken in order of their commits and enter the inbox under
their ids, so they never overtake each other. A message that was scheduled for later keeps its id and
so takes the place that its commit had.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from postroom.kv import keys
from postroom.messaging.inbox import Inboxes
from postroom.messaging.outbox import Outbox
from postroom.messaging.requests import Deliverable, Delivered, DeliverDue, Moved
from postroom.messaging.tokens import QUIET
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.registry import Registry

_encode = msgspec.msgpack.encode
_entries = msgspec.msgpack.Decoder(Deliverable)


class Delivery:
    """Evaluates ``DeliverDue``."""

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
        """Adds it to ``registry``."""
        registry.commands[DeliverDue] = self.deliver_due

    def deliver_due(self, ctx: Evaluation, request: DeliverDue) -> Moved:
        """``DeliverDue``."""
        outbox = self._outbox
        due, next_due = outbox.take_due(ctx, request.messages_max)
        if due:
            self._inboxes.deliver(ctx, self._arrivals(ctx, due))
            outbox.advance(ctx, due[-1][0])
            ctx.count("delivered", len(due))
            ctx.count("pending_messages", -len(due))
        ctx.after.append(self._quiet)
        return Moved(len(due), 0 < next_due <= ctx.timestamp, next_due)

    def _arrivals(
        self, ctx: Evaluation, due: list[tuple[bytes, bytes]]
    ) -> dict[bytes, list[tuple[bytes, bytes]]]:
        """By recipient: the ids and the stored form of what arrives."""
        arrivals: dict[bytes, list[tuple[bytes, bytes]]] = {}
        id_from = len(self._outbox.prefix) + 8
        sender, now = self._sender, ctx.timestamp
        for key, stored in due:
            entry = _entries.decode(stored)
            message = _encode(Delivered(now, entry.value, entry.headers))
            id_ = key[id_from : id_from + 8] + sender + key[id_from + 8 :]
            arrivals.setdefault(entry.key, []).append((id_, message))
            ctx.erase(key)
            ctx.grow(len(message) + 64)
        return arrivals
