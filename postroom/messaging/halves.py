"""The division of a range's messaging when the range splits.

::

    outboxes, dead letters, counters       stay left: they have a sender's identity
    postponed messages that hold up        go with their key, from outbox to outbox
    marks of channels                      go with their keys
    the index of queues                    is divided beforehand (:mod:`.queues.dividing`)

A postponed message that holds up an inbox has a record beside that inbox, which says where the
message waits (:mod:`.inbox_index`). Both must be in one range. All other entries of the outboxes
stay left. They become outgoing when they are due, and arrive like those of any other range.

Finding what holds up inboxes is done beforehand, a part at a time: the index of inboxes tells it.
Inboxes that are held up meanwhile are noted. ``halve`` moves the messages. They are seldom many, so
this needs no second part of the outbox, no position in it, and no way back. *Price:* a range does
not split while more than ``SPLIT_HELD_UP_MAX`` messages hold up inboxes of its right half.

The marks are one small record for each channel, of which a sending range has nine.
"""

from __future__ import annotations

from typing import Final

import msgspec

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.kv.engine import ValueReader
from postroom.limits import PROPOSAL_BYTES_MAX, SPLIT_HELD_UP_MAX
from postroom.messaging.handover import marks
from postroom.messaging.inbox import Inboxes
from postroom.messaging.inbox_index import mail_entries
from postroom.messaging.outbox import Outboxes
from postroom.messaging.queues.dividing import QueueHalves
from postroom.messaging.queues.learning import inherit
from postroom.messaging.queues.range_queues import RangeQueues
from postroom.messaging.requests import Counters
from postroom.ranges.bounds import Bounds
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.evaluation import Evaluation

LOOKED_AT_ONCE: Final = 2000
"""The number of inboxes that ``divide_some`` looks at."""
_LOOKED_A_STEP: Final = 8

_encode: Final = msgspec.msgpack.Encoder().encode


class MessagingHalves:
    """The messaging of a range that may split; it implements ``Divisible``.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        outboxes: its outboxes.
        inboxes: its inboxes.
        queues: its queues.
    """

    def __init__(
        self,
        range_id: int,
        bounds: Bounds,
        outboxes: Outboxes,
        inboxes: Inboxes,
        queues: RangeQueues,
    ) -> None:
        self._range_id = range_id
        self._bounds = bounds
        self._outboxes = outboxes
        self._inboxes = inboxes
        self.queues = QueueHalves(range_id, queues)
        self._key: bytes | None = None
        self._cursor: bytes | None = None

    def restart(self) -> None:
        """Begin with a new lease."""
        self.prepared(self._key)

    def prepared(self, key: bytes | None) -> None:
        """Begin to note which inboxes are held up, or cease to."""
        self._key = self._cursor = self.queues.key = key
        self._inboxes.held_up = None if key is None else set()

    def check(self, ctx: Evaluation) -> None:
        """Do nothing: all of it can be divided."""

    def must_wait(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether an entry is due for keys from ``key`` on, which would be overtaken."""
        deliverable, executable = self._outboxes.deliverable, self._outboxes.executable
        return (
            deliverable.has_due_from(ctx, key) or executable.has_due(ctx)
            or deliverable.outgoing.has_own_from(key) or executable.outgoing.has_own_from(b"")
            or self.queues.must_wait()
        )  # fmt: skip

    # --- messages and marks that go with their keys

    def has_rest(self, stored: ValueReader) -> bool:
        """Return whether something of an earlier split is left to delete."""
        return self.queues.has_rest(stored)

    def give_up(self, ctx: Evaluation) -> None:
        """Stage the end of what was divided for a split that is cancelled."""
        self.queues.give_up(ctx)

    def divide_some(self, ctx: Evaluation) -> bool:
        """Divide some of the index of queues, then look for inboxes that are held up."""
        return self.queues.divide_some(ctx) or self._look_for_held_up(ctx)

    def _look_for_held_up(self, ctx: Evaluation) -> bool:
        """Look for inboxes of the right half that are held up."""
        held_up = self._inboxes.held_up
        if self._cursor is None or held_up is None:
            return False
        found = mail_entries(ctx, keys.mail_span(self._cursor, self._bounds.end))
        for looked_at, (raw, mail) in enumerate(found, 1):
            key = keys.user_key(raw)
            if looked_at > LOOKED_AT_ONCE:
                self._cursor = key
                return True
            ctx.steps += not looked_at % _LOOKED_A_STEP
            if mail.held:
                held_up.add(key)
        self._cursor = None
        return False

    def halve(self, ctx: Evaluation, right: RangeDescriptor) -> bytes:
        """Stage the right half's postponed messages and marks; return its counters."""
        held_up = self._inboxes.held_up
        if self._cursor is not None or held_up is None:
            raise Unavailable("the split is not prepared yet", retry_after=0.01)
        self.queues.halve(ctx, right)
        moved = self._move(ctx, sorted(key for key in held_up if key >= right.start), right)
        self._divide_marks(ctx, right)
        inherit(ctx, self._range_id, right.range_id)
        ctx.count("pending_messages", -moved)
        ctx.count("handed", moved)
        return _encode(Counters(received=moved, pending_messages=moved))

    def _move(self, ctx: Evaluation, held_up: list[bytes], right: RangeDescriptor) -> int:
        here = self._outboxes.deliverable.prefix
        there = keys.outbox_prefix(right.range_id, keys.DELIVERABLE, keys.WAITING)
        moved = size = 0
        for key in held_up:
            for record, waits_at in list(ctx.iterate(*keys.hold_up_span(key))):
                entry = ctx.get_once(waits_at)
                if entry is None:
                    continue  # it has come back, and what says so goes with the next one
                moved, size = moved + 1, size + len(entry)
                if moved > SPLIT_HELD_UP_MAX or size > PROPOSAL_BYTES_MAX:
                    raise Unavailable(
                        f"more than {SPLIT_HELD_UP_MAX} postponed messages, or "
                        f"{PROPOSAL_BYTES_MAX} bytes of them, hold up inboxes of the right half; "
                        "nothing was changed: wait until fewer do",
                        retry_after=1.0,
                    )
                moved_to = there + waits_at[len(here) :]
                ctx.writes[waits_at] = None
                ctx.writes[moved_to] = entry
                ctx.writes[record] = moved_to
        return moved

    def _divide_marks(self, ctx: Evaluation, right: RangeDescriptor) -> None:
        here, there = keys.marks_prefix(self._range_id), keys.marks_prefix(right.range_id)
        for record, stored in list(ctx.iterate(here, keys.after_prefix(here))):
            known = marks.decode(stored)
            if going := marks.within(known, right.start, right.end):
                staying = marks.within(known, self._bounds.start, right.start)
                ctx.writes[there + record[len(here) :]] = marks.encode(going)
                ctx.writes[record] = marks.encode(staying)

    def halved(self) -> None:
        """Forget the order of inboxes, some of which are the right half's now."""
        self._inboxes.bounds_changed()
        self.queues.halved()
