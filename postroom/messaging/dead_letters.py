"""Dead letters: what could not be executed or delivered, kept with its reason.

Nothing is dropped silently. A request that can never succeed (an increment of something that is no
integer) moves here, in the same write that takes it out of its outbox. From here it can be
replayed, which puts it back into the outbox, or discarded, which counts it as dead for good.
"""

from __future__ import annotations

import msgspec

from postroom.kv import keys
from postroom.messaging.outbox import Outboxes
from postroom.messaging.pages import fill
from postroom.messaging.requests import (
    DeadLetter,
    DeadLetterRecord,
    DiscardDeadLetters,
    Executable,
    ListDeadLetters,
    ReplayDeadLetters,
)
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.registry import Registry

_encode = msgspec.msgpack.encode
_records = msgspec.msgpack.Decoder(DeadLetterRecord)


class DeadLetters:
    """The dead letters of one range, under the id (commit timestamp, position) of their entry."""

    def __init__(self, range_id: int, outboxes: Outboxes) -> None:
        self._prefix = keys.dead_letter_prefix(range_id)
        self._end = keys.after_prefix(self._prefix)
        self._outboxes = outboxes

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.reads[ListDeadLetters] = self.list_dead_letters
        registry.writes[ReplayDeadLetters] = self.replay
        registry.writes[DiscardDeadLetters] = self.discard

    def bury(self, ctx: Evaluation, id_: bytes, entry: Executable, reason: str) -> None:
        """``entry`` can never be carried out."""
        ctx.writes[self._prefix + id_] = _encode(DeadLetterRecord(reason, None, entry))
        ctx.count("dead")

    def list_dead_letters(self, view: View, request: ListDeadLetters) -> list[DeadLetter]:
        """``ListDeadLetters``."""
        stored = view.iterate(self._prefix + request.after + b"\x00", self._end)
        entries = ((key[len(self._prefix) :], record) for key, record in stored)
        found, more = fill(entries, request.letters_max, request.bytes_max)
        last = len(found) - 1
        return [
            DeadLetter(id_, _records.decode(record), more=more and index == last)
            for index, (id_, record) in enumerate(found)
        ]

    def replay(self, ctx: Evaluation, request: ReplayDeadLetters) -> int:
        """``ReplayDeadLetters``."""
        replayed = 0
        for id_, record in self._take(ctx, request.ids):
            if record.update is not None:
                self._outboxes.executable.store(ctx, ctx.timestamp, id_, record.update)
            elif record.message is not None:
                self._outboxes.deliverable.store(ctx, ctx.timestamp, id_, record.message)
            ctx.count("dead", -1)
            replayed += 1
        return replayed

    def discard(self, ctx: Evaluation, request: DiscardDeadLetters) -> int:
        """``DiscardDeadLetters``."""
        discarded = len(self._take(ctx, request.ids))
        ctx.count("discarded", discarded)
        return discarded

    def _take(self, ctx: Evaluation, ids: list[bytes]) -> list[tuple[bytes, DeadLetterRecord]]:
        taken = []
        for id_ in ids:
            stored = ctx.get(self._prefix + id_)
            if stored is not None:
                ctx.writes[self._prefix + id_] = None
                taken.append((id_, _records.decode(stored)))
        return taken
