"""The messages and updates that went no further: those that wait for their time, and dead letters.

::

    outbox   due id ─── listed in the order of due, both outboxes together
                    │
                    ├── its time comes ──▶ delivered, or executed; failed for good ─▶ dead letter
                    └── cancelled ───────▶ gone; counted as dead, discarded and cancelled

A cancellation is a write like any other: it deletes the entry and counts it in one write set. If a
cancellation and a delivery come at the same time, one of them happens, and the answer says which.
An entry that has left its outbox cannot be cancelled, nor can a ``DeleteRange`` that has begun to
delete. The name of an entry is range, due time, id and outbox, in that order: it says where its
entry is. The name ends when the entry moves on. A dead letter is named by its range and the id of
its message or update. A request that names something of another range finds nothing here.

The lists of several ranges can be merged. Entries that are alike but for their ranges are in the
order of these, so the name of any entry tells every range where to go on.

Nothing is dropped silently. A request that can never succeed (an increment of something that is no
integer) becomes a dead letter, in the same write that takes it out of its outbox. A dead letter can
be replayed, which puts it back into the outbox, or discarded, which counts it as dead for good. A
message that was tried in vain (:mod:`postroom.messaging.attempts`) is untried when it is replayed.
An entry that the dispatcher or the executor cannot move, whatever the reason, comes here as well
(``BuryDue``), once it was tried alone. Otherwise everything behind it would wait for ever.

A worker tells the messages that die of its functions. A message may also end the process of its
worker, attempt after attempt, or its lease runs out each time. Only the leaseholder sees that it
dies, and logs it, with the command that revives the message.
"""

from __future__ import annotations

import heapq
import logging
import shlex
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final

import msgspec

from postroom.counted import counted
from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import LIST_MAX, MESSAGE_BYTES_MAX, READ_BYTES_MAX, REASON_CHARACTERS_MAX
from postroom.log_once import LogOnce
from postroom.messaging.outbox import QUIET, Outbox, Outboxes
from postroom.messaging.requests import (
    BuryDue,
    CancelScheduled,
    DeadLetterRecord,
    Deliverable,
    DiscardDeadLetters,
    Executable,
    ListDeadLetters,
    ListScheduled,
    ReplayDeadLetters,
    ScheduledEntry,
    SchedulePage,
    StoredDeadLetter,
)
from postroom.ranges.contract import RANGE_ID_BYTES
from postroom.ranges.evaluation import Evaluation, View, check_size
from postroom.ranges.ports import Registry
from postroom.ranges.requests import DeleteRange

LOOKED_AT_ONCE: Final = 1000
LOOKED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""The size of the entries in the outboxes that one answer looks at, whether they match or not."""

_WHOLE_BYTES: Final = 8 * MESSAGE_BYTES_MAX
"""The size of an entry of an outbox up to which it is buried with its headers."""

_encode = msgspec.msgpack.encode
_records = msgspec.msgpack.Decoder(DeadLetterRecord)
_log: Final = logging.getLogger("postroom.dead_letters")


class DeadLetters:
    """The dead letters of one range, under the id of their message or update."""

    def __init__(
        self,
        range_id: int,
        outboxes: Outboxes,
        let_go: Callable[[Evaluation, bytes, Deliverable | None], None],
    ) -> None:
        self._let_go = let_go
        self._range = keys.u64(range_id)
        self._prefix = keys.dead_letter_prefix(range_id)
        self._end = keys.after_prefix(self._prefix)
        self._outboxes = outboxes

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.reads[ListDeadLetters] = self.list_dead_letters
        registry.writes[ReplayDeadLetters] = self.replay
        registry.writes[DiscardDeadLetters] = self.discard
        registry.commands[BuryDue] = self.bury_due

    def bury(self, ctx: Evaluation, id_: bytes, entry: Executable, reason: str) -> None:
        """Bury an update that can never be carried out."""
        self._store(ctx, id_, DeadLetterRecord(reason[:REASON_CHARACTERS_MAX], None, entry))

    def bury_message(
        self, ctx: Evaluation, id_: bytes, entry: Deliverable, reason: str = ""
    ) -> None:
        """Bury a message, for a reason or that of its last trial: it was tried in vain."""
        if entry.trial is not None:
            reason = entry.trial.error
        self._store(ctx, id_, DeadLetterRecord(reason[:REASON_CHARACTERS_MAX], entry, None))

    def bury_due(self, ctx: Evaluation, request: BuryDue) -> bool:
        """Evaluate ``BuryDue``; return whether there was an entry to bury."""
        outboxes = self._outboxes
        outbox = outboxes.executable if request.updates else outboxes.deliverable
        due = outbox.take_due(ctx, 1).entries
        if not due:
            return False
        ((key, stored),) = due
        reason, entry = request.reason[:REASON_CHARACTERS_MAX], outbox.decode(stored)
        message, update = (None, entry) if request.updates else (entry, None)
        if message is not None and len(stored) > _WHOLE_BYTES:
            # With its headers it would fit into no command, and this one would fail, too.
            reason = f"{reason} (its headers, of {len(stored)} bytes with the message, are gone)"
            message = msgspec.structs.replace(message, headers=None)
        id_ = outbox.id_of(key)
        self._store(ctx, id_, DeadLetterRecord(reason, message, update))
        ctx.erase(key)
        ctx.count(outbox.pending, -1)
        outbox.advance(ctx, [key])
        self._let_go(ctx, id_, message)
        return True

    def _store(self, ctx: Evaluation, id_: bytes, record: DeadLetterRecord) -> None:
        ctx.writes[self._prefix + id_] = stored = _encode(record)
        ctx.grow(len(stored))
        ctx.count("dead")

    def list_dead_letters(self, view: View, request: ListDeadLetters) -> list[StoredDeadLetter]:
        """Evaluate ``ListDeadLetters``."""
        letters_max = min(request.letters_max, LIST_MAX)
        bytes_max = min(request.bytes_max, READ_BYTES_MAX)
        found: list[StoredDeadLetter] = []
        size = 0
        of_range, id_ = request.after[:RANGE_ID_BYTES], request.after[RANGE_ID_BYTES:]
        first = self._prefix + id_ + (b"" if self._range > of_range else b"\x00")
        for key, stored in view.iterate(first, self._end):
            size += len(stored)
            if len(found) >= letters_max or (found and size > bytes_max):
                found[-1:] = [msgspec.structs.replace(each, more=True) for each in found[-1:]]
                break
            name = self._range + key[len(self._prefix) :]
            found.append(StoredDeadLetter(name, _records.decode(stored)))
        view.steps += len(found)
        return found

    def replay(self, ctx: Evaluation, request: ReplayDeadLetters) -> Generator[None, None, int]:
        """Evaluate ``ReplayDeadLetters``; return how many dead letters were replayed."""
        replayed, size_before = 0, ctx.bytes
        for taken in self._take(ctx, request.ids):
            if taken is not None:
                self._put_back(ctx, *taken)
                replayed += 1
                check_size(ctx.bytes - size_before, "replay fewer dead letters at a time")
            if ctx.is_used_up():
                yield
        return replayed

    def _put_back(self, ctx: Evaluation, id_: bytes, record: DeadLetterRecord) -> None:
        if record.update is not None:
            self._outboxes.executable.store(ctx, ctx.timestamp, id_, record.update)
        elif record.message is not None:
            message = msgspec.structs.replace(record.message, trial=None)
            self._outboxes.deliverable.store(ctx, ctx.timestamp, id_, message)
        ctx.count("dead", -1)

    def discard(self, ctx: Evaluation, request: DiscardDeadLetters) -> Generator[None, None, int]:
        """Evaluate ``DiscardDeadLetters``; return how many dead letters were discarded."""
        discarded = 0
        for taken in self._take(ctx, request.ids):
            discarded += taken is not None
            if ctx.is_used_up():
                yield
        ctx.count("discarded", discarded)
        return discarded

    def _take(
        self, ctx: Evaluation, ids: list[bytes]
    ) -> Iterator[tuple[bytes, DeadLetterRecord] | None]:
        """Take out the dead letters ``ids``; yield `None` for each that is not there."""
        for name in ids:
            ctx.steps += 1
            id_ = name[RANGE_ID_BYTES:]
            key = self._prefix + id_
            stored = ctx.get(key) if name[:RANGE_ID_BYTES] == self._range else None
            if stored is None:
                yield None
                continue
            ctx.writes[key] = None
            ctx.grow(len(key))
            yield id_, _records.decode(stored)


class Schedule:
    """The entries of both outboxes that are not due yet."""

    def __init__(
        self,
        range_id: int,
        outboxes: Outboxes,
        wake: Callable[[list[object]], None],
        let_go: Callable[[Evaluation, bytes, Deliverable | None], None],
    ) -> None:
        self._let_go = let_go
        self._range = keys.u64(range_id)
        self._outboxes: dict[bytes, Outbox] = {
            keys.DELIVERABLE: outboxes.deliverable,
            keys.EXECUTABLE: outboxes.executable,
        }
        self._quiet = partial(wake, [QUIET])

    def register(self, registry: Registry) -> None:
        """Register the requests."""
        registry.reads[ListScheduled] = self.list_scheduled
        registry.writes[CancelScheduled] = self.cancel

    def list_scheduled(self, view: View, request: ListScheduled) -> SchedulePage:
        """Evaluate ``ListScheduled``."""
        found: list[ScheduledEntry] = []
        size = 0
        last = b""
        for looked_at, (name, stored) in enumerate(self._from(view, request.after)):
            if (
                looked_at >= LOOKED_AT_ONCE
                or size >= min(request.bytes_max, LOOKED_AT_ONCE_BYTES)
                or len(found) >= request.entries_max
                or (looked_at and view.is_used_up())
            ):
                return SchedulePage(found, last)
            view.steps += 1
            size += len(stored)
            last = name
            entry: Deliverable | Executable = self._outboxes[name[-1:]].decode(stored)
            if _is_within(entry, request.start, request.end):
                message = entry if isinstance(entry, Deliverable) else None
                update = entry if isinstance(entry, Executable) else None
                found.append(ScheduledEntry(name, message, update))
        return SchedulePage(found, None)

    def _from(self, view: View, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over names and stored entries after the one of that name, without those due."""
        both = []
        of_range, key, of_kind = after[:RANGE_ID_BYTES], after[RANGE_ID_BYTES:-1], after[-1:]
        for kind, outbox in self._outboxes.items():
            # Entries that are alike but for outbox and range are in the order of these.
            cursor = outbox.cursor_of(outbox.prefix + key) if after else b""
            included = (kind, self._range) > (of_kind, of_range)
            entries = outbox.waiting_after(view, cursor, view.now, included=included)
            both.append(self._placed(outbox, kind, entries))
        return ((name, stored) for _, name, stored in heapq.merge(*both))

    def _placed(
        self, outbox: Outbox, kind: bytes, entries: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Iterate over the cursors of entries, their names, and their stored forms."""
        start = len(outbox.prefix)
        for key, stored in entries:
            yield outbox.cursor_of(key) + kind, self._range + key[start:] + kind, stored

    def cancel(self, ctx: Evaluation, request: CancelScheduled) -> Generator[None, None, int]:
        """Evaluate ``CancelScheduled``, over several turns if there are many."""
        cancelled = 0
        for name in request.ids:
            ctx.steps += 1
            if ctx.is_used_up():
                yield
            outbox = self._outboxes.get(name[-1:])
            if outbox is None or name[:RANGE_ID_BYTES] != self._range:
                continue
            key = outbox.prefix + name[RANGE_ID_BYTES:-1]
            stored = ctx.get(key)
            if stored is None:
                continue
            entry = outbox.decode(stored)
            if isinstance(entry, Executable) and entry.began:
                continue
            ctx.writes[key] = None
            ctx.grow(2 * len(key))
            ctx.count(outbox.pending, -1)
            if isinstance(entry, Deliverable):
                self._let_go(ctx, outbox.id_of(key), entry)
            for counter in ("dead", "discarded", "cancelled"):
                ctx.count(counter)
            cancelled += 1
        ctx.after.append(self._quiet)
        return cancelled


def _is_within(entry: Deliverable | Executable, start: bytes, end: bytes | None) -> bool:
    """Return whether the entry is about a key of the span."""
    about = entry if isinstance(entry, Deliverable) else entry.request
    if isinstance(about, DeleteRange):
        return (end is None or about.start < end) and (about.end is None or about.end > start)
    return about.key >= start and (end is None or about.key < end)


def reviving_queue_message(queue: str, id_: str | bytes) -> str:
    """Return the command that revives a dead message; the call, if a shell cannot take its id."""
    if isinstance(id_, bytes) or not (id_.isprintable() and queue.isprintable()):
        return f"db.queue({queue!r}).replay({id_!r})"
    dashes = " --" if queue.startswith("-") or id_.startswith("-") else ""
    return f"postroom queue replay{dashes} {shlex.quote(queue)} {shlex.quote(id_)}"


def reviving_letter(message_id: str) -> str:
    """Return the command that revives a message of an inbox that is dead."""
    return f"postroom dead-letters --replay {message_id}"


class DeathLog:
    """The log of messages that died without a worker that could tell it."""

    def __init__(self) -> None:
        self._said = LogOnce()

    def died(self, ctx: Evaluation, what: str, attempts: int, reason: str, revive: str) -> None:
        """Log a death once it is applied.

        Args:
            ctx: the evaluation that buries the message.
            what: names the message.
            attempts: how many have failed.
            reason: why the last one has.
            revive: how it is revived.
        """
        now = (ctx.timestamp >> LOGICAL_BITS) / 1000
        ctx.after.append(
            lambda: self._said.log(
                _log, (what, now), now, "%s is dead after %s: %s; %s",
                what, counted(attempts, "attempt"), reason, revive,
            )
        )  # fmt: skip
