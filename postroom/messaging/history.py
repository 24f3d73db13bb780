"""The history of one message: where it lies now, and what is still stored of its way there.

::

    COMMIT record of its sender ─▶ outbox ─▶ inbox ─▶ record of what left the inbox
    (found by its timestamp)                          dead letter

Nothing is stored for this alone. The id of a message tells when it was sent, and by which range. It
does not tell the recipient: each range looks in its outboxes, its dead letters, and in all its
inboxes that have mail. A request that names the key looks in that inbox alone.

COMMIT records, and the records of what has left an inbox, are found by the lists of garbage
(:mod:`postroom.ranges.garbage`): each proposal lists them under its timestamp. Without the key, the
lists of the last ``_LOOKED_BACK_SECONDS`` are searched. They are seldom kept for longer.

The places are searched in the order of a message's way, so that one that moves meanwhile is found.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.messaging import due as times
from postroom.messaging.attempts import UNTRIED
from postroom.messaging.history_requests import FindCommits, FoundCommit, TraceMessage, TraceRecord
from postroom.messaging.inbox import Inboxes
from postroom.messaging.inbox_index import mail_entries
from postroom.messaging.outbox import Outbox, Outboxes
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    DeadLetterRecord,
    Deliverable,
    Delivered,
    Executable,
)
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import TRANSACTION_ID_BYTES
from postroom.ranges.transactions.records import decode_unresolved, record_key_of

_LOOKED_BACK_SECONDS: Final = 150.0
"""The age up to which garbage is searched for a message that has left its inbox, in seconds."""
_LISTED_WITHIN: Final = from_seconds(10.0)
"""The time after a commit over several ranges within which its record is listed as garbage."""
_LISTED_PER_STEP: Final = 8
"""The number of listed keys that cost one step, if they are not looked up."""


_Looking: TypeAlias = Generator[None, None, None]
_delivered: Final = msgspec.msgpack.Decoder(Delivered).decode
_letter: Final = msgspec.msgpack.Decoder(DeadLetterRecord).decode
_listed: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_left: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


@dataclass(eq=False)
class MessageHistory:
    """The evaluators of ``TraceMessage`` and ``FindCommits`` in one range.

    Attributes:
        range_id: the id of the range.
        outboxes, inboxes: those of the range.
        bounds: its bounds.
    """

    range_id: int
    outboxes: Outboxes
    inboxes: Inboxes
    bounds: Bounds

    def register(self, registry: Registry) -> None:
        """Register the reads."""
        registry.reads[TraceMessage] = self.trace
        registry.reads[FindCommits] = self.find_commits

    def trace(self, view: View, request: TraceMessage) -> Generator[None, None, list[TraceRecord]]:
        """Evaluate ``TraceMessage``, over as many turns as it takes."""
        found: list[TraceRecord] = []
        for outbox in (self.outboxes.deliverable, self.outboxes.executable):
            yield from self._look_in_outbox(view, outbox, request.id, found)
        yield from self._look_in_inboxes(view, request, found)
        yield from self._look_for_left(view, request, found)
        self._look_in_dead_letters(view, request.id, found)
        return found

    # --- outboxes and dead letters

    def _look_in_outbox(
        self, view: View, outbox: Outbox, id_: bytes, found: list[TraceRecord]
    ) -> _Looking:
        for prefix, where in ((outbox.prefix, "waits"), (outbox.outgoing.prefix, "outgoing")):
            for raw, stored in view.iterate(prefix, keys.after_prefix(prefix)):
                view.steps += 1
                if raw[-MESSAGE_ID_BYTES:] == id_:
                    when = int.from_bytes(raw[len(prefix) :][:8], "big")
                    found.append(self._entry(where, times.shown(when), outbox.decode(stored)))
                if view.is_used_up():
                    yield

    def _entry(self, where: str, at: int, entry: Deliverable | Executable) -> TraceRecord:
        if isinstance(entry, Executable):
            anchor = entry.request.anchor()
            return TraceRecord(where, self.range_id, at, anchor, True, entry.transaction_id)
        trial = entry.trial or UNTRIED
        return TraceRecord(
            where, self.range_id, at, entry.key, False, entry.transaction_id, 0,
            trial.attempts, trial.error,
        )  # fmt: skip

    def _look_in_dead_letters(self, view: View, id_: bytes, found: list[TraceRecord]) -> None:
        view.steps += 1
        stored = view.get(keys.dead_letter_prefix(self.range_id) + id_)
        if stored is None:
            return
        letter = _letter(stored)
        entry = letter.message or letter.update
        if entry is not None:
            trace = self._entry("dead", 0, entry)
            found.append(msgspec.structs.replace(trace, error=letter.reason))

    # --- inboxes

    def _look_in_inboxes(
        self, view: View, request: TraceMessage, found: list[TraceRecord]
    ) -> _Looking:
        if request.key is not None:
            if self.bounds.contains(request.key):
                self._look_in_inbox(view, request.key, request.id, found)
            return
        for raw, mail in mail_entries(view, keys.mail_span(self.bounds.start, self.bounds.end)):
            view.steps += 1
            if mail.messages and mail.oldest <= request.id:
                self._look_in_inbox(view, keys.user_key(raw), request.id, found)
            if view.is_used_up():
                yield

    def _look_in_inbox(self, view: View, key: bytes, id_: bytes, found: list[TraceRecord]) -> None:
        view.steps += 1
        stored = view.get(keys.inbox_prefix(key) + id_)
        if stored is not None:
            message, holder = _delivered(stored), self.inboxes.claims.holder(key, id_)
            trial = message.trial or UNTRIED
            found.append(TraceRecord(
                "inbox", self.range_id, message.delivered_at, key, False, holder or b"", 0,
                trial.attempts, trial.error,
            ))  # fmt: skip

    # --- records of what has left inboxes

    def _look_for_left(
        self, view: View, request: TraceMessage, found: list[TraceRecord]
    ) -> _Looking:
        for record in self._left_records(view, request):
            if record is None:
                yield
                continue
            raw, stored = record
            for id_, message in _left(stored):
                view.steps += 1
                if id_ == request.id:
                    found.append(self._left_at(raw, _delivered(message)))

    def _left_at(self, raw: bytes, message: Delivered) -> TraceRecord:
        stamp, is_consumed = keys.reaped_in(raw, raw.index(keys.END_OF_KEY, 1))
        trial = message.trial or UNTRIED
        return TraceRecord(
            "consumed" if is_consumed else "left", self.range_id, int.from_bytes(stamp, "big"),
            keys.user_key(raw), False, b"", message.delivered_at, trial.attempts, trial.error,
        )  # fmt: skip

    def _left_records(
        self, view: View, request: TraceMessage
    ) -> Iterator[tuple[bytes, bytes] | None]:
        """Yield records of what has left inboxes; ``None``: the turn is used up."""
        if request.key is not None:
            if self.bounds.contains(request.key):
                for record in view.iterate(*keys.suffix_span(request.key, keys.REAPED)):
                    view.steps += 1
                    yield record
                    if view.is_used_up():
                        yield None
            return
        sent_at = int.from_bytes(request.id[:8], "big")
        since = max(sent_at, view.now - from_seconds(_LOOKED_BACK_SECONDS), 0)
        for _, garbage in self._garbage(view, since, 1 << 64):
            for raw in garbage:
                stored = view.get(raw) if _has_left(raw) else None
                if stored is not None:
                    view.steps += 1
                    yield raw, stored
                if view.is_used_up():
                    yield None

    def _garbage(self, view: View, since: int, until: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield the lists of garbage from a timestamp to another, with theirs."""
        prefix = keys.garbage_prefix(self.range_id)
        upper = keys.after_prefix(prefix) if until >> 64 else prefix + keys.u64(until)
        for raw, stored in view.iterate(prefix + keys.u64(since), upper):
            listed = _listed(stored)
            view.steps += 1 + len(listed) // _LISTED_PER_STEP
            yield int.from_bytes(raw[len(prefix) :][:8], "big"), listed

    # --- commits

    def find_commits(
        self, view: View, request: FindCommits
    ) -> Generator[None, None, list[FoundCommit]]:
        """Evaluate ``FindCommits``, over as many turns as it takes."""
        found = []
        for timestamp in dict.fromkeys(request.timestamps):
            for record in self._records(view, timestamp):
                if record is None:
                    yield
                    continue
                view.steps += 1
                stored = view.get(record)
                if stored is not None and stored[:8] == keys.u64(timestamp):
                    name = record[-TRANSACTION_ID_BYTES:], keys.user_key(record)
                    found.append(FoundCommit(timestamp, self.range_id, *name))
                    break
                if view.is_used_up():
                    yield
        return found

    def _records(self, view: View, timestamp: int) -> Iterator[bytes | None]:
        """Yield the keys of COMMIT records that may have a timestamp; ``None``: see above.

        The record of a commit in one range is in the first list of garbage from its timestamp on.
        Others are listed when all ranges have heard of the commit.
        """
        for _, garbage in self._garbage(view, timestamp, timestamp + _LISTED_WITHIN):
            yield from (raw for raw in garbage if raw[:1] == keys.TRANSACTION)
            if view.is_used_up():
                yield None
        prefix = keys.unresolved_prefix(self.range_id)
        for raw, stored in view.iterate(prefix, keys.after_prefix(prefix)):
            view.steps += 1
            if decode_unresolved(stored).timestamp == timestamp:
                yield record_key_of(raw[len(prefix) :])
            if view.is_used_up():
                yield None


def _has_left(raw: bytes) -> bool:
    """Return whether an engine key is that of a record of what has left an inbox."""
    if raw[:1] != keys.DATA:
        return False
    end = raw.index(keys.END_OF_KEY, 1) + len(keys.END_OF_KEY)
    return raw[end : end + 1] == keys.REAPED
