"""The two outboxes of a range: what transactions send, until it is delivered or executed.

::

    commit ── EnqueueMessage ──▶ deliverable ── delivery ───▶ inbox of the recipient
           └─ EnqueueUpdate ───▶ executable ─── execution ──▶ the update itself
                                      └─ can never succeed ──▶ dead letters

Entries are ordered by when they are due, then by commit timestamp and position; due is the commit
timestamp itself unless the sender said later. Moving an entry on and deleting it is one raw write
set, so it happens once, whatever fails: whoever believes to be the dispatcher after having lost the
lease proposes something that is never applied.

An entry that is due at once, for the same range, need not be stored at all: unless older ones wait
(of messages: such as are due), delivery and execution take it up in the very proposal that commits
it, and store the rest.

Deleting from the head of an LSM queue leaves tombstones. Each outbox therefore keeps a *head
cursor* in memory: nothing is waiting below it, and reading starts there. It is found anew with a
new lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.limits import PROPOSAL_BYTES_MAX
from postroom.messaging.counters import Conservation
from postroom.messaging.requests import (
    AwaitQuiet,
    Deliverable,
    EnqueueMessage,
    EnqueueUpdate,
    Executable,
)
from postroom.messaging.tokens import QUIET
from postroom.ranges.checks import check_accounting, check_headers
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.registry import Registry
from postroom.ranges.requests import Accounting, Put

ENTRY_BYTES: Final = 64
"""What an entry costs beside what is in it, as it counts towards a transaction's limit."""
DUE_BYTES: Final = 8
Parcel: TypeAlias = tuple[int, bytes, Any, bytes, bytes]
"""What a transaction hands over: due (0: at once), id (commit timestamp and position), the request,
and the transaction's id and source."""

_encode = msgspec.msgpack.encode
_recipients = msgspec.msgpack.Decoder(Deliverable)


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

    Attributes:
        prefix: what the keys of its entries begin with; due, commit timestamp and position follow.
        has_stored: whether anything was stored of which the services have not heard.
    """

    def __init__(
        self, range_id: int, kind: bytes, pending: str, conservation: Conservation
    ) -> None:
        self.pending = pending
        self._conservation = conservation
        self.prefix = keys.outbox_prefix(range_id, kind)
        self._end = keys.after_prefix(self.prefix)
        self._head = self.prefix
        self._coming_head = self.prefix
        self.has_stored = False

    def restart(self, _: Reader) -> None:
        """With a new lease: the cursor is not known."""
        self._head = self.prefix

    def is_empty(self, ctx: Evaluation) -> bool:
        """Whether nothing waits here, so that what comes now overtakes nothing."""
        return not self._waiting(ctx)

    def has_due(self, ctx: Evaluation) -> bool:
        """Whether something waits here that is due, so that what comes now would overtake it."""
        if not self._waiting(ctx):
            return False
        due = ctx.iterate(self._head, self.prefix + keys.u64(ctx.timestamp + 1))
        return next(iter(due), None) is not None

    def _waiting(self, ctx: Evaluation) -> int:
        stored: int = getattr(self._conservation.applied, self.pending)
        return stored + ctx.tally.get(self.pending, 0)

    def store(
        self, ctx: Evaluation, due: int, id_: bytes, entry: Deliverable | Executable
    ) -> bytes:
        """A new entry, due not before its own commit; answers its engine key."""
        when = max(id_[:8], due.to_bytes(8, "big"))
        key = self.prefix + when + id_
        ctx.writes[key] = stored = _encode(entry)
        # Committed before, but stored after something due later was taken: in one proposal.
        self._coming_head = min(self._coming_head, key)
        self.has_stored = True
        ctx.count(self.pending)
        ctx.grow(len(key) + len(stored))
        return key

    def take_due(self, ctx: Evaluation, entries_max: int) -> Due:
        """The first entries that are due, and when the next one will be."""
        waiting = self._waiting(ctx)
        if not waiting:
            return Due([], 0)
        due = ctx.iterate(self._head, self.prefix + keys.u64(ctx.timestamp + 1))
        entries = _up_to(PROPOSAL_BYTES_MAX, islice(due, entries_max))
        return Due(entries, self._next_due(ctx, entries) if len(entries) < waiting else 0)

    def first_entry_due(self, ctx: Evaluation) -> tuple[bytes, bytes] | None:
        """The first entry that is due."""
        entries = self.take_due(ctx, 1).entries
        return entries[0] if entries else None

    def _next_due(self, ctx: Evaluation, taken: list[tuple[bytes, bytes]]) -> int:
        """When the first entry after those ``taken`` is due."""
        lower = taken[-1][0] + b"\x00" if taken else self._head
        for key, _ in ctx.iterate(lower, self._end):
            return self._due_of(key)
        raise StoreCorrupted(
            f"the counter {self.pending} says that an outbox holds entries, but it is empty; "
            "nothing was changed: please report this"
        )

    def is_quiet(self, view: View) -> bool:
        """Whether no entry is due."""
        if not getattr(self._conservation.applied, self.pending):
            return True
        due = view.iterate(self._head, self.prefix + keys.u64(view.now + 1))
        return next(iter(due), None) is None

    def recipients_due(self, ctx: Evaluation, entries_max: int) -> set[bytes] | None:
        """Whom the messages are for that are due here; ``None`` if there are more than that."""
        if not self._waiting(ctx):
            return set()
        due = ctx.iterate(self._head, self.prefix + keys.u64(ctx.timestamp + 1))
        found = [stored for _, stored in islice(due, entries_max + 1)]
        if len(found) > entries_max:
            return None
        return {_recipients.decode(stored).key for stored in found}

    def first_due(self, stored: Reader) -> int:
        """When the first entry is due, as it is stored; 0: there is none."""
        if not getattr(self._conservation.applied, self.pending):
            return 0
        for key, _ in stored.iterate(self._head, self._end):
            return self._due_of(key)
        return 0

    def _due_of(self, key: bytes) -> int:
        start = len(self.prefix)
        return int.from_bytes(key[start : start + DUE_BYTES], "big")

    def id_of(self, key: bytes) -> bytes:
        """The part of an entry's key that says where it comes from: commit timestamp and
        position.
        """
        return key[len(self.prefix) + DUE_BYTES :]

    def advance(self, ctx: Evaluation, last: bytes) -> None:
        """Once the proposal is applied, everything up to ``last`` is done with."""
        self._coming_head = last
        ctx.after.append(self._advance)

    def _advance(self) -> None:
        self._head = max(self._head, self._coming_head)


class Outboxes:
    """Both, and what fills them."""

    def __init__(self, range_id: int, conservation: Conservation) -> None:
        self.deliverable = Outbox(range_id, keys.DELIVERABLE, "pending_messages", conservation)
        self.executable = Outbox(range_id, keys.EXECUTABLE, "pending_updates", conservation)

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.writes[EnqueueMessage] = enqueue_message
        registry.writes[EnqueueUpdate] = enqueue_update
        registry.reads[AwaitQuiet] = self.await_quiet
        registry.on_lease += (self.deliverable.restart, self.executable.restart)

    def await_quiet(self, view: View, _: AwaitQuiet) -> None:
        """``AwaitQuiet``."""
        if not (self.deliverable.is_quiet(view) and self.executable.is_quiet(view)):
            raise MustWait(QUIET)


def _up_to(bytes_max: int, due: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The first entries, one at least: what is moved must fit into a proposal."""
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in due:
        size += len(entry[0]) + len(entry[1])
        if size > bytes_max and taken:
            break
        taken.append(entry)
    return taken


def enqueue_message(ctx: Evaluation, request: EnqueueMessage) -> None:
    """``EnqueueMessage``: the delivery decides where the message goes from here, and counts it.

    Raises:
        Invalid, ValueTooLarge: its headers are nested too deep, or too large.
    """
    headers = request.headers
    if headers:
        check_headers(headers, request.key)
        ctx.grow(len(_encode(headers)))
    id_ = ctx.stamp + ctx.next_ordinal()
    ctx.sent.append((request.due, id_, request, ctx.transaction_id, ctx.source))
    ctx.steps += 1
    ctx.bytes += len(request.value) + len(request.key) + ENTRY_BYTES


def enqueue_update(ctx: Evaluation, request: EnqueueUpdate) -> None:
    """``EnqueueUpdate``: the execution decides where the update goes from here, and counts it.

    Raises:
        ValueTooLarge: it is an ``Accounting`` with too many prefixes or metrics.
    """
    update = request.request
    if type(update) is Accounting:
        check_accounting(update.key, update.deltas)
        ctx.grow(sum(map(len, update.deltas)))
    elif type(update) is Put:
        ctx.grow(len(update.value))
    id_ = ctx.stamp + ctx.next_ordinal()
    ctx.deferred.append((request.due, id_, update, ctx.transaction_id, ctx.source))
    ctx.steps += 1
    ctx.bytes += ENTRY_BYTES
