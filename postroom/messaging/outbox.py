"""The two outboxes of a range: what transactions send, until it is delivered or executed.

::

    commit ── EnqueueMessage ──▶ deliverable ── DeliverDue ──▶ inbox of the recipient
           └─ EnqueueUpdate ───▶ executable ─── ExecuteDue ──▶ the update itself
                                      └─ can never succeed ──▶ dead letters

Entries are ordered by when they are due, then by commit timestamp and position; due is the commit
timestamp itself unless the sender said later. Moving an entry on and deleting it is one raw write set,
so it happens once, whatever fails: whoever believes to be the dispatcher after having lost the
lease proposes something that is never applied.

Deleting from the head of an LSM queue leaves tombstones. Each outbox therefore keeps a *head cursor* in
memory: nothing is waiting below it, and reading starts there. It is found anew with a new lease.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.counters import Conservation
from postroom.messaging.requests import (
    AwaitQuiet,
    Deliverable,
    EnqueueMessage,
    EnqueueUpdate,
    Executable,
)
from postroom.messaging.tokens import QUIET
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.registry import Registry

DUE_BYTES: Final = 8
_encode = msgspec.msgpack.encode


class Due(NamedTuple):
    """Entries (key, stored) that are due, and when the next one after them will be (0: none)."""

    entries: list[tuple[bytes, bytes]]
    next_due: int


class Outbox:
    """One of the two: entries in order, from the head cursor on.

    Args:
        range_id: whose.
        kind: which of the two.
        pending: the counter of its entries.
        conservation: the range's counters.
    """

    def __init__(
        self, range_id: int, kind: bytes, pending: str, conservation: Conservation
    ) -> None:
        self._pending = pending
        self._conservation = conservation
        self.prefix = keys.outbox_prefix(range_id, kind)
        self._end = keys.after_prefix(self.prefix)
        self._head = self.prefix

    def restart(self, _: Reader) -> None:
        """With a new lease: the cursor is not known."""
        self._head = self.prefix

    def add(self, ctx: Evaluation, due: int, entry: bytes) -> None:
        """A new entry, due not before its own commit."""
        stamp = ctx.stamp
        key = b"".join(
            (
                self.prefix,
                stamp if due <= ctx.timestamp else due.to_bytes(8, "big"),
                stamp,
                ctx.next_ordinal(),
            )
        )
        ctx.writes[key] = entry
        ctx.grow(len(key) + len(entry))

    def put_back(self, ctx: Evaluation, id_: bytes, entry: bytes) -> None:
        """An old entry, due now, under its old timestamp and position."""
        ctx.writes[self.prefix + ctx.stamp + id_] = entry

    def take_due(self, ctx: Evaluation, entries_max: int) -> Due:
        """The first entries that are due, and when the next one will be.

        Entries that this very proposal adds are among them. If none was pending before it, only those
        can be, and the engine is not asked.
        """
        stored = getattr(self._conservation.applied, self._pending)
        pending = stored + ctx.tally.get(self._pending, 0)
        if not pending:
            return Due([], 0)
        upper = self.prefix + keys.u64(ctx.timestamp + 1)
        found = ctx.iterate(self._head, upper) if stored else ctx.iterate_staged(self._head, upper)
        entries = list(islice(found, entries_max))
        return Due(entries, self._next_due(ctx, entries) if len(entries) < pending else 0)

    def _next_due(self, ctx: Evaluation, taken: list[tuple[bytes, bytes]]) -> int:
        """When the first entry after those ``taken`` is due."""
        lower = taken[-1][0] + b"\x00" if taken else self._head
        for key, _ in ctx.iterate(lower, self._end):
            return int.from_bytes(self.due_of(key), "big")
        raise StoreCorrupted(
            f"the counter {self._pending} says that an outbox holds entries, but it is empty; "
            "nothing was changed: please report this"
        )

    def is_quiet(self, view: View) -> bool:
        """Whether no entry is due."""
        if not getattr(self._conservation.applied, self._pending):
            return True
        due = view.iterate(self._head, self.prefix + keys.u64(view.now + 1))
        return next(iter(due), None) is None

    def due_of(self, key: bytes) -> bytes:
        """The part of an entry's key that says when it is due."""
        start = len(self.prefix)
        return key[start : start + DUE_BYTES]

    def id_of(self, key: bytes) -> bytes:
        """The part that says where it comes from: commit timestamp and position."""
        return key[len(self.prefix) + DUE_BYTES :]

    def advance(self, ctx: Evaluation, last: bytes) -> None:
        """Once the proposal is applied, everything up to ``last`` is done with."""
        ctx.after.append(lambda: self._advanced(last))

    def _advanced(self, last: bytes) -> None:
        self._head = max(self._head, last)


class Outboxes:
    """Both, and what fills them."""

    def __init__(self, range_id: int, conservation: Conservation) -> None:
        self.deliverable = Outbox(range_id, keys.DELIVERABLE, "pending_messages", conservation)
        self.executable = Outbox(range_id, keys.EXECUTABLE, "pending_updates", conservation)

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.writes[EnqueueMessage] = self.enqueue_message
        registry.writes[EnqueueUpdate] = self.enqueue_update
        registry.reads[AwaitQuiet] = self.await_quiet
        registry.on_lease += (self.deliverable.restart, self.executable.restart)

    def enqueue_message(self, ctx: Evaluation, request: EnqueueMessage) -> None:
        """``EnqueueMessage``."""
        entry = Deliverable(
            request.key, request.value, request.headers, ctx.transaction_id, ctx.source
        )
        self.deliverable.add(ctx, request.due, _encode(entry))
        ctx.count("enqueued")
        ctx.count("pending_messages")

    def enqueue_update(self, ctx: Evaluation, request: EnqueueUpdate) -> None:
        """``EnqueueUpdate``."""
        entry = Executable(request.request, ctx.transaction_id, ctx.source)
        self.executable.add(ctx, request.due, _encode(entry))
        ctx.count("enqueued")
        ctx.count("pending_updates")

    def await_quiet(self, view: View, _: AwaitQuiet) -> None:
        """``AwaitQuiet``."""
        if not (self.deliverable.is_quiet(view) and self.executable.is_quiet(view)):
            raise MustWait(QUIET)
