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

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.kv.engine import Reader
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


class Outbox:
    """One of the two: entries in order, from the head cursor on."""

    def __init__(self, range_id: int, kind: bytes) -> None:
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

    def due(self, reader: Evaluation | View, now: int) -> Iterator[tuple[bytes, bytes]]:
        """The entries that are due, in order."""
        return reader.iterate(self._head, self.prefix + keys.u64(now + 1))

    def next_due(self, ctx: Evaluation, after: bytes | None) -> int:
        """When the first entry after the one at ``after`` is due; 0 if there is none."""
        lower = self._head if after is None else after + b"\x00"
        for key, _ in ctx.iterate(lower, self._end):
            return int.from_bytes(self.due_of(key), "big")
        return 0

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

    def __init__(self, range_id: int, now: Callable[[], int]) -> None:
        self._now = now
        self.deliverable = Outbox(range_id, keys.DELIVERABLE)
        self.executable = Outbox(range_id, keys.EXECUTABLE)

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
        for outbox in (self.deliverable, self.executable):
            now = self._now()
            if next(iter(outbox.due(view, now)), None) is not None:
                raise MustWait(QUIET)
