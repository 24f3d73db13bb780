"""The dead letters of a range: entries and messages that failed for good, each with its reason.

Nothing is dropped silently. A request that can never succeed (an increment of something that is no
integer) moves here, in the same write that takes it out of its outbox. A dead letter can be
replayed, which puts it back into the outbox, or discarded, which counts it as dead for good. A
message that was tried in vain (:mod:`postroom.messaging.attempts`) is untried when it is replayed.

An entry that the dispatcher or the executor cannot move, whatever the reason, comes here as well
(``BuryDue``), once it was tried alone. Otherwise everything behind it would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final

import msgspec

from postroom.kv import keys
from postroom.limits import LIST_MAX, MESSAGE_BYTES_MAX, READ_BYTES_MAX, REASON_CHARACTERS_MAX
from postroom.messaging.outbox import Outboxes
from postroom.messaging.pages import fill
from postroom.messaging.requests import (
    BuryDue,
    DeadLetterRecord,
    Deliverable,
    DiscardDeadLetters,
    Executable,
    ListDeadLetters,
    ReplayDeadLetters,
    StoredDeadLetter,
)
from postroom.ranges.evaluation import Evaluation, View, check_size
from postroom.ranges.ports import Registry

_WHOLE_BYTES: Final = 8 * MESSAGE_BYTES_MAX

_encode = msgspec.msgpack.encode
_messages = msgspec.msgpack.Decoder(Deliverable)
_updates = msgspec.msgpack.Decoder(Executable)
_records = msgspec.msgpack.Decoder(DeadLetterRecord)


class DeadLetters:
    """The dead letters of one range, under the id (commit timestamp, ordinal) of their entry."""

    def __init__(
        self,
        range_id: int,
        outboxes: Outboxes,
        let_go: Callable[[Evaluation, bytes, Deliverable | None], None],
    ) -> None:
        self._let_go = let_go
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

    def bury_message(self, ctx: Evaluation, id_: bytes, entry: Deliverable) -> None:
        """Bury a message that was delivered and tried in vain, for the reason of its last trial."""
        reason = "" if entry.trial is None else entry.trial.error
        self._store(ctx, id_, DeadLetterRecord(reason[:REASON_CHARACTERS_MAX], entry, None))

    def bury_due(self, ctx: Evaluation, request: BuryDue) -> bool:
        """Evaluate ``BuryDue``; return whether there was an entry to bury."""
        outboxes = self._outboxes
        outbox = outboxes.executable if request.updates else outboxes.deliverable
        first = outbox.first_entry_due(ctx)
        if first is None:
            return False
        key, stored = first
        reason = request.reason[:REASON_CHARACTERS_MAX]
        if request.updates:
            record = DeadLetterRecord(reason, None, _updates.decode(stored))
        else:
            record = DeadLetterRecord(reason, _messages.decode(stored), None)
        if len(stored) > _WHOLE_BYTES and record.message is not None:
            # It was stored when there were no limits: with its headers it might fit nowhere.
            reason = f"{reason} (its headers, of {len(stored)} bytes with the message, are gone)"
            message = msgspec.structs.replace(record.message, headers=None)
            record = DeadLetterRecord(reason, message, None)
        self._store(ctx, outbox.id_of(key), record)
        ctx.erase(key)
        ctx.count(outbox.pending, -1)
        outbox.advance(ctx, [key])
        self._let_go(ctx, outbox.id_of(key), record.message)
        return True

    def _store(self, ctx: Evaluation, id_: bytes, record: DeadLetterRecord) -> None:
        ctx.writes[self._prefix + id_] = stored = _encode(record)
        ctx.grow(len(stored))
        ctx.count("dead")

    def list_dead_letters(self, view: View, request: ListDeadLetters) -> list[StoredDeadLetter]:
        """Evaluate ``ListDeadLetters``."""
        stored = view.iterate(self._prefix + request.after + b"\x00", self._end)
        entries = ((key[len(self._prefix) :], record) for key, record in stored)
        letters_max = min(request.letters_max, LIST_MAX)
        found, more = fill(entries, letters_max, min(request.bytes_max, READ_BYTES_MAX))
        view.steps += len(found)
        last = len(found) - 1
        return [
            StoredDeadLetter(id_, _records.decode(record), more=more and index == last)
            for index, (id_, record) in enumerate(found)
        ]

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
        for id_ in ids:
            ctx.steps += 1
            stored = ctx.get(self._prefix + id_)
            if stored is None:
                yield None
                continue
            ctx.writes[self._prefix + id_] = None
            ctx.grow(len(self._prefix) + len(id_))
            yield id_, _records.decode(stored)
