"""The two outboxes of a range: what transactions send, until it is delivered or executed.

::

    commit ── EnqueueMessage ──▶ deliverable ── delivery ───▶ inbox of the recipient
           └─ EnqueueUpdate ───▶ executable ─── execution ──▶ the update itself
                                      └─ can never succeed ──▶ dead letters

An outbox has two subspaces. Entries that wait for their time or their turn can be cancelled. Those
for other ranges become *outgoing* when they are due, which is irrevocable (:mod:`.handover`).

Entries that wait are ordered by their due time (:mod:`.due`), then by their ids. The due time is
the commit timestamp itself unless the sender asked for a later one. Entries that wait for a moment
of the wall clock are behind those that wait for a timestamp. These are two *lines*, each with its
due entries first.

An entry is moved on and deleted in one raw write set, so that happens once, whatever fails. A node
that lost the lease and does not know it proposes something that is never applied.

An entry that is due at once, for the same range, need not be stored at all. Delivery and execution
carry it out in the proposal that commits it, unless older ones wait (for messages: older ones that
are due). They store the rest.

Deletion from the head of an LSM queue leaves tombstones. Each line therefore keeps a *head cursor*
in memory: nothing waits below it, and reading starts there. It is found again with a new lease.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from postroom.errors import StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.limits import HANDED_OVER_MAX, HEADERS_BYTES_PER_STEP, PROPOSAL_BYTES_MAX
from postroom.messaging import due as times
from postroom.messaging.counters import Conservation
from postroom.messaging.handover.outgoing import Outgoing
from postroom.messaging.requests import (
    AwaitQuiet,
    Deliverable,
    EnqueueMessage,
    EnqueueUpdate,
    Executable,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.checks import check_accounting, check_headers
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import Accounting, Put

ENTRY_BYTES: Final = 64
"""The cost of an entry in bytes beside its content, as it counts towards a transaction's limit."""
DUE_BYTES: Final = 8
_LOOKED_AT: Final = 100
LOOKED_FOR_AT_ONCE: Final = 500
"""The number of entries in a part of an outbox in which some are looked for."""
QUIET: Final = "no outbox entry is due, or on its way"
"""The token of those that wait for that."""
Parcel: TypeAlias = tuple[int, bytes, Any, bytes, bytes]
"""The form in which a transaction hands over a request to an outbox.

It has the due time (0: at once), the id, the request, and the transaction's id and source.
"""

_KINDS: Final[dict[bytes, tuple[str, type[Deliverable] | type[Executable]]]] = {
    keys.DELIVERABLE: ("messages", Deliverable),
    keys.EXECUTABLE: ("updates", Executable),
}
_encode = msgspec.msgpack.encode


class Due(NamedTuple):
    """The entries (key, stored) that are due, and when the next one will be (0: there is none)."""

    entries: list[tuple[bytes, bytes]]
    next_due: int


class _Line:
    """The entries of an outbox that wait for timestamps, or for moments.

    Attributes:
        begin, end: the keys between which they are stored.
        head: the key below which nothing waits.
        coming_head: the same, once the proposal under evaluation is applied.
        waits_for_moments: whether these are the entries that wait for moments.
    """

    __slots__ = ("begin", "coming_head", "end", "head", "waits_for_moments")

    def __init__(self, begin: bytes, end: bytes, *, waits_for_moments: bool) -> None:
        self.begin = self.head = self.coming_head = begin
        self.end = end
        self.waits_for_moments = waits_for_moments

    def advance(self) -> None:
        """Advance the head, since the proposal is applied."""
        self.head = max(self.head, self.coming_head)


class Outbox:
    """The entries of one outbox in order, from the head cursors on.

    Args:
        range_id: the id of the range.
        kind: ``keys.DELIVERABLE`` or ``keys.EXECUTABLE``.
        conservation: the range's counters.
        by_wall: the trusted wall clock.
        bounds: the bounds of the range.

    Attributes:
        prefix: the key prefix of its entries; due time and id follow.
        outgoing: those of its entries that are on their way to other ranges.
        pending: the name of the counter of its entries that wait.
        decode: a function that decodes a stored entry.
        has_stored: whether entries were stored that the services have not heard of.
    """

    def __init__(
        self,
        range_id: int,
        kind: bytes,
        conservation: Conservation,
        by_wall: Callable[[], int],
        bounds: Bounds,
    ) -> None:
        what, entries = _KINDS[kind]
        self.pending = f"pending_{what}"
        self.decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(entries).decode
        self._conservation = conservation
        self._by_wall = by_wall
        self.prefix = keys.outbox_prefix(range_id, kind, keys.WAITING)
        moments = self.prefix + keys.u64(times.MOMENT)
        self._lines = (
            _Line(self.prefix, moments, waits_for_moments=False),
            _Line(moments, keys.after_prefix(self.prefix), waits_for_moments=True),
        )
        self.has_stored = False
        self.outgoing = Outgoing(
            keys.outbox_prefix(range_id, kind, keys.OUTGOING),
            f"outgoing_{what}",
            self.decode,
            conservation,
            bounds,
        )

    def restart(self, stored: Reader) -> None:
        """Forget the cursors, with a new lease."""
        for line in self._lines:
            line.head = line.begin
        self.outgoing.restart(stored)

    def is_empty(self, ctx: Evaluation) -> bool:
        """Return whether no entry waits here, so that a new one overtakes nothing."""
        return not self._waiting(ctx)

    def has_due(self, ctx: Evaluation) -> bool:
        """Return whether an entry waits here that is due, so that a new one would overtake it."""
        if not self._waiting(ctx):
            return False
        return next(self._due(ctx, ctx.timestamp), None) is not None

    def has_due_from(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether a message for a key from ``key`` on is due, or too many to look are."""
        if not self._waiting(ctx):
            return False
        due = list(islice(self._due(ctx, ctx.timestamp), _LOOKED_AT))
        ctx.steps += len(due)
        return len(due) == _LOOKED_AT or any(self.decode(stored).key >= key for _, stored in due)

    def has_due_stored(self, reader: Reader, now: int) -> bool:
        """Return whether a stored entry is due."""
        return next(self._due(reader, now), None) is not None

    def _waiting(self, ctx: Evaluation) -> int:
        stored: int = getattr(self._conservation.applied, self.pending)
        return stored + ctx.tally.get(self.pending, 0)

    def _due(self, reader: Reader | Evaluation | View, now: int) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the entries that are due, first those that wait for timestamps."""
        for line in self._lines:
            yield from self._due_in(line, reader, now)

    def _due_in(
        self, line: _Line, reader: Reader | Evaluation | View, now: int
    ) -> Iterable[tuple[bytes, bytes]]:
        upper = self.prefix + keys.u64(self._last_due(line, now) + 1)
        return reader.iterate(line.head, upper) if upper > line.head else ()

    def _last_due(self, line: _Line, now: int) -> int:
        """Return the greatest due time of the due entries of a line."""
        return times.MOMENT | self._by_wall() >> 1 if line.waits_for_moments else now

    def store(
        self, ctx: Evaluation, due: int, id_: bytes, entry: Deliverable | Executable
    ) -> bytes:
        """Store a new entry, which is not due before its own commit; return its engine key."""
        return self.store_at(ctx, max(id_[:8], keys.u64(due)), id_, entry)

    def store_at(
        self, ctx: Evaluation, when: bytes, id_: bytes, entry: Deliverable | Executable
    ) -> bytes:
        """Store an entry at its place, the due time (8 bytes) and its id; return its key."""
        key = self.prefix + when + id_
        ctx.writes[key] = stored = _encode(entry)
        # This proposal may have taken an entry that is due later.
        line = self._line_of(key)
        line.coming_head = min(line.coming_head, key)
        # A moment may come before one that was taken: the wall clock was set back since.
        line.head = min(line.head, key)
        self.has_stored = True
        ctx.count(self.pending)
        ctx.grow(len(key) + len(stored))
        return key

    def _line_of(self, key: bytes) -> _Line:
        lengths, moments = self._lines
        return moments if key >= moments.begin else lengths

    def take_due(self, ctx: Evaluation, entries_max: int) -> Due:
        """Return the first entries that are due, and when the next one will be."""
        waiting = self._waiting(ctx)
        if not waiting:
            return Due([], 0)
        due, moments = (iter(self._due_in(line, ctx, ctx.timestamp)) for line in self._lines)
        first = next(moments, None)
        if first is not None:
            lines = due, chain([first], moments)
            due = heapq.merge(*lines, key=lambda entry: self.cursor_of(entry[0]))
        entries = _up_to(PROPOSAL_BYTES_MAX, islice(due, entries_max))
        return Due(entries, self._next_due(ctx, entries) if len(entries) < waiting else 0)

    def _next_due(self, ctx: Evaluation, taken: list[tuple[bytes, bytes]]) -> int:
        """Return when the first entry after those ``taken`` is due, as a timestamp."""
        last = {self._line_of(key): key for key, _ in taken}
        found = self._first(ctx, ctx.timestamp, last)
        if found:
            return found
        raise StoreCorrupted(
            f"the counter {self.pending} says that an outbox contains entries, but it is empty; "
            "nothing was changed: please report this"
        )

    def _first(self, reader: Reader | Evaluation, now: int, after: dict[_Line, bytes]) -> int:
        """Return the timestamp at which to look at the first entry behind these keys.

        It is 0 if there is none.
        """
        first = 0
        for line in self._lines:
            lower = after[line] + b"\x00" if line in after else line.head
            for key, _ in reader.iterate(lower, line.end):
                due = times.look_at(self.due_of(key), now, self._by_wall)
                first = min(first or due, due)
                break
        return first

    def is_quiet(self, view: View) -> bool:
        """Return whether no entry is due, and none is on its way."""
        if not self.outgoing.is_empty(view):
            return False
        if not getattr(self._conservation.applied, self.pending):
            return True
        # Updates that were received together are due one after the other.
        return next(self._due(view, view.now + HANDED_OVER_MAX), None) is None

    def recipients_due(self, ctx: Evaluation, entries_max: int) -> set[bytes] | None:
        """Return the recipients of the due messages; `None`: more than ``entries_max`` are due."""
        if not self._waiting(ctx):
            return set()
        found = [stored for _, stored in islice(self._due(ctx, ctx.timestamp), entries_max + 1)]
        if len(found) > entries_max:
            return None
        return {self.decode(stored).key for stored in found}

    def first_due(self, stored: Reader, now: int) -> int:
        """Return when to look at the first stored entry, as a timestamp; 0: there is none."""
        if self.outgoing.number:
            return now
        if not getattr(self._conservation.applied, self.pending):
            return 0
        return self._first(stored, now, {})

    def waiting_after(
        self, reader: Evaluation | View, cursor: bytes, now: int, *, included: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries that are not due yet, in the order of their cursors.

        Args:
            reader: the stored state.
            cursor: the cursor to begin behind; ``b""``: begin with the first.
            now: the timestamp of the read.
            included: whether to begin with that entry itself.
        """
        lines = []
        for line in self._lines:
            lower = cursor
            if line.waits_for_moments:
                shown = int.from_bytes(cursor[:DUE_BYTES], "big")
                due = times.at(shown)
                lower = keys.u64(due) + (cursor[DUE_BYTES:] if times.shown(due) == shown else b"")
            first = self.prefix + keys.u64(self._last_due(line, now) + 1)
            lower = self.prefix + lower + (b"" if included else b"\x00")
            lines.append(reader.iterate(max(first, lower), line.end))
        return heapq.merge(*lines, key=lambda entry: self.cursor_of(entry[0]))

    def cursor_of(self, key: bytes) -> bytes:
        """Return the cursor of an entry in lists: its due time, as a timestamp, and its id."""
        return keys.u64(times.shown(self.due_of(key))) + self.id_of(key)

    def due_of(self, key: bytes) -> int:
        """Return the due time in an entry's key."""
        start = len(self.prefix)
        return int.from_bytes(key[start : start + DUE_BYTES], "big")

    def id_of(self, key: bytes) -> bytes:
        """Return the id in an entry's key."""
        return key[len(self.prefix) + DUE_BYTES :]

    def advance(self, ctx: Evaluation, done: Iterable[bytes], left: Iterable[bytes] = ()) -> None:
        """Advance the heads past the entries ``done``, up to the first of those ``left``.

        This takes effect once the proposal is applied.
        """
        keys_left = list(left)
        for line in self._lines:
            mine = [key for key in done if self._line_of(key) is line]
            if mine:
                kept = (key for key in keys_left if key >= line.begin)
                line.coming_head = min((max(mine), *kept))
        ctx.after.append(self._advance)

    def _advance(self) -> None:
        for line in self._lines:
            line.advance()


class Outboxes:
    """The two outboxes of a range, and the evaluators that fill them.

    Args:
        range_id: the id of the range.
        conservation: the range's counters.
        by_wall: the trusted wall clock.
        bounds: the bounds of the range.
    """

    def __init__(
        self,
        range_id: int,
        conservation: Conservation,
        by_wall: Callable[[], int],
        bounds: Bounds,
    ) -> None:
        self._sender = keys.u64(range_id)
        told = (conservation, by_wall, bounds)
        self.deliverable = Outbox(range_id, keys.DELIVERABLE, *told)
        self.executable = Outbox(range_id, keys.EXECUTABLE, *told)
        self._by_wall = by_wall

    def register(self, registry: Registry) -> None:
        """Register the evaluators of both."""
        registry.writes[EnqueueMessage] = self.enqueue_message
        registry.writes[EnqueueUpdate] = self.enqueue_update
        registry.reads[AwaitQuiet] = self.await_quiet

    def restart(self, stored: Reader) -> None:
        """Begin with a new lease."""
        self.deliverable.restart(stored)
        self.executable.restart(stored)

    def await_quiet(self, view: View, _: AwaitQuiet) -> None:
        """Evaluate ``AwaitQuiet``: wait until no entry is due or on its way."""
        if not (self.deliverable.is_quiet(view) and self.executable.is_quiet(view)):
            raise MustWait(QUIET)

    def may_send(self) -> bool:
        """Return whether anything may be for another range, or on its way."""
        return self.deliverable.outgoing.may_go_out()

    def look_for(
        self, ctx: Evaluation, sources: Collection[bytes] | None, timestamp: int
    ) -> Iterator[bool]:
        """Look for what was sent from some sources up to a timestamp, and has not arrived.

        Args:
            ctx: the evaluation.
            sources: the sources; ``None``: any.
            timestamp: the timestamp.

        Yield for each part of the outboxes whether such an entry is there. Messages that wait
        behind others count, and what is scheduled for later does not.
        """
        executable, deliverable = self.executable, self.deliverable
        for prefix, decode in (
            (executable.outgoing.prefix, executable.decode),
            (deliverable.outgoing.prefix, deliverable.decode),
            (deliverable.prefix, deliverable.decode),
        ):
            lower, upper = prefix, prefix + keys.u64(timestamp + 1)
            while some := list(islice(ctx.iterate(lower, upper), LOOKED_FOR_AT_ONCE)):
                yield sources is None or any(_is_from(each, sources, decode) for _, each in some)
                lower = some[-1][0] + b"\x00"

    def enqueue_message(self, ctx: Evaluation, request: EnqueueMessage) -> None:
        """Evaluate ``EnqueueMessage``: hand the message to the delivery, which counts it.

        Raises:
            Invalid, ValueTooLarge: its headers are nested too deep, or too large.
            OutboxFull: it is for another range, and too much is on its way already.
        """
        if request.headers is not None:
            size = check_headers(request.headers, request.key)
            ctx.grow(size)
            ctx.steps += size // HEADERS_BYTES_PER_STEP
        id_ = ctx.stamp + self._sender + ctx.next_ordinal()
        due = request.due and times.resolved(request.due, ctx.timestamp, self._by_wall)
        outgoing = self.deliverable.outgoing
        if not due and outgoing.may_go_out() and outgoing.goes_out(request.key):
            outgoing.check_room()
        ctx.sent.append((due, id_, request, ctx.transaction_id, ctx.source))
        ctx.steps += 1
        ctx.bytes += len(request.value) + len(request.key) + ENTRY_BYTES

    def enqueue_update(self, ctx: Evaluation, request: EnqueueUpdate) -> None:
        """Evaluate ``EnqueueUpdate``: hand the update to the execution, which counts it.

        Raises:
            ValueTooLarge: it is an ``Accounting`` with too many prefixes or metrics.
            OutboxFull: it is for another range, and too much is on its way already.
        """
        update = request.request
        if type(update) is Accounting:
            check_accounting(update.key, update.deltas)
            ctx.grow(sum(map(len, update.deltas)))
        elif type(update) is Put:
            ctx.grow(len(update.value))
        id_ = ctx.stamp + self._sender + ctx.next_ordinal()
        due = request.due and times.resolved(request.due, ctx.timestamp, self._by_wall)
        outgoing = self.executable.outgoing
        if outgoing.may_go_out() and outgoing.update_goes_out(ctx.scratch, update) and not due:
            outgoing.check_room()
        ctx.deferred.append((due, id_, update, ctx.transaction_id, ctx.source))
        ctx.steps += 1
        ctx.bytes += ENTRY_BYTES


def _is_from(stored: bytes, sources: Collection[bytes], decode: Callable[[bytes], Any]) -> bool:
    """Return whether a stored entry is from one of some sources; it is seldom decoded."""
    return any(each in stored for each in sources) and decode(stored).source in sources


def _up_to(bytes_max: int, due: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the first entries, at least one, that together fit into a proposal."""
    taken: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in due:
        size += len(entry[0]) + len(entry[1])
        if size > bytes_max and taken:
            break
        taken.append(entry)
    return taken
