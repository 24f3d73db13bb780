"""The deletion of archived messages, a step at a time: ``TrimArchive``.

Archived messages are never purged: a client has to say that they are safe elsewhere. The messages
that one proposal has archived are in lists under its timestamp, and nothing is ever added to a
list. Thus the lists up to a timestamp name all messages archived up to it, whatever comes later.

A step deletes whole lists, oldest first. If a list is too large for it, it deletes the last
messages, so that those who read it page by page find the first ones where they were. Messages
remain that are read at a protected timestamp, or can be read without one (``gc_ttl``).
"""

from __future__ import annotations

from typing import Final

from postroom.errors import Invalid
from postroom.kv import keys
from postroom.messaging.queues import counters, records
from postroom.messaging.queues.enqueueing import remove
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.places import read_state
from postroom.messaging.queues.records import Ended
from postroom.messaging.queues.requests import TrimArchive
from postroom.messaging.queues.settling import Queues
from postroom.messaging.queues.trouble import damaged, decoded
from postroom.ranges.evaluation import Evaluation

TRIMMED_AT_ONCE: Final = 1000
"""The number of messages that are deleted in one step."""
TRIMMED_BYTES_AT_ONCE: Final = 1024 * 1024
"""The size in bytes of a step at which it deletes no more."""


class Trimming:
    """The evaluator of ``TrimArchive``.

    Args:
        queues: the queues of the range.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def trim(self, ctx: Evaluation, request: TrimArchive) -> list[int]:
        """Evaluate ``TrimArchive``; return the number of deleted messages, and 1 if there are more.

        Raises:
            Invalid: there is no such queue, or another one of this name.
            QueueDamaged: a list of archived messages cannot be read.
        """
        manager, _ = self._queues.find(ctx, request.queue)
        if manager.definition.created_at != request.created_at:
            raise Invalid(
                f"the queue {request.queue!r} was dropped, and made anew; nothing was deleted: "
                "what was read of the one before is gone by itself"
            )
        layout = manager.layout
        kept_from = self._queues.may_purge(ctx, ctx.timestamp - self._queues.kept)
        upper = layout.archived + keys.u64(min(request.until + 1, kept_from))
        trimmed, size_before = 0, ctx.bytes
        for key, packed in ctx.iterate(layout.archived, upper):
            ended = decoded(records.ended_lists, packed, manager.name)
            while ended:
                if trimmed >= TRIMMED_AT_ONCE or ctx.bytes - size_before > TRIMMED_BYTES_AT_ONCE:
                    ctx.writes[key] = left = records.encode(ended)
                    ctx.grow(len(left))
                    return [trimmed, 1]
                self._trim_one(ctx, manager, ended.pop())
                trimmed += 1
            ctx.writes[key] = None
            ctx.grow(len(key))
        return [trimmed, 0]

    def _trim_one(self, ctx: Evaluation, manager: Manager, ended: Ended) -> None:
        if ended.status != records.ARCHIVED:
            raise damaged(manager.name, "a stored list", f"it lists the status {ended.status}")
        locator = (ended.key, ended.kind, ended.id)
        state = read_state(ctx, manager, locator)
        ctx.steps += 3
        if state is not None and state.seq == ended.seq:
            remove(ctx, manager, locator)
        ctx.notes.append((manager, counters.TRIMMED, Manager.nothing, None, None))


__all__ = ["TRIMMED_AT_ONCE", "TRIMMED_BYTES_AT_ONCE", "Trimming"]
