"""The evaluators for clients that read all messages, page by page, as of one timestamp.

An inbox as of a timestamp has the messages that are in it now and were there then, and those that
have been reaped since (:meth:`.Inboxes.peek_then`). A walk over the span finds the keys, since an
emptied inbox is in no index. Outboxes and dead letters have no past: they are read in the snapshot
of the engine that was taken then (:mod:`postroom.ranges.protections`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

import msgspec

from postroom.kv import columns, keys
from postroom.kv.engine import Reader
from postroom.limits import LIST_MAX
from postroom.messaging.bulk_requests import (
    InboxesPage,
    LettersPage,
    OutboxPage,
    ReapedPage,
    ScanDeadLetters,
    ScanInboxes,
    ScanOutbox,
    ScanReaped,
)
from postroom.messaging.inbox import Inboxes
from postroom.messaging.requests import (
    DeadLetterRecord,
    Deliverable,
    Executable,
    Peek,
    ScheduledEntry,
    StoredDeadLetter,
)
from postroom.ranges.bulk import page_bytes
from postroom.ranges.evaluation import View
from postroom.ranges.registry import Registry

_decoders: Final[dict[bytes, Callable[[bytes], Any]]] = {
    keys.DELIVERABLE: msgspec.msgpack.Decoder(Deliverable).decode,
    keys.EXECUTABLE: msgspec.msgpack.Decoder(Executable).decode,
}
_taken = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_records = msgspec.msgpack.Decoder(DeadLetterRecord)


class BulkMessages:
    """The evaluators of bulk reads of messages in one range.

    Args:
        range_id: the id of the range.
        inboxes: the inboxes of the range.
        check_age: a function that refuses timestamps that cannot be read at.
        reader: the stored state at a timestamp that is protected as a whole.
    """

    def __init__(
        self,
        range_id: int,
        inboxes: Inboxes,
        check_age: Callable[[View, int], None],
        reader: Callable[[Reader, int], Reader],
    ) -> None:
        self._range_id = range_id
        self._inboxes = inboxes
        self._check_age = check_age
        self._reader = reader

    def register(self, registry: Registry) -> None:
        """Register the reads."""
        registry.reads |= {
            ScanInboxes: self.scan_inboxes,
            ScanReaped: self.scan_reaped,
            ScanOutbox: self.scan_outbox,
            ScanDeadLetters: self.scan_dead_letters,
        }

    # --- inboxes

    def scan_inboxes(self, view: View, request: ScanInboxes) -> Generator[None, None, InboxesPage]:
        """Evaluate ``ScanInboxes``, over as many turns as it takes.

        Raises:
            SnapshotTooOld: the timestamp has been collected.
        """
        self._check_age(view, request.timestamp)
        found: list[tuple[bytes, list[tuple[bytes, bytes]]]] = []
        messages, room = 0, page_bytes(request.bytes_max)
        for key in self._with_mail(view, request):
            if key is None:
                yield
                self._check_age(view, request.timestamp)
                continue
            after = request.after if key == request.start else None
            if messages >= LIST_MAX or room <= 0:
                return InboxesPage(found, key, after)
            peek = Peek(key, LIST_MAX - messages, request.timestamp, room, after)
            page = yield from self._inboxes.peek_then(view, peek)
            if page.messages:
                found.append((key, page.messages))
                messages += len(page.messages)
                room -= sum(len(stored) + len(key) for _, stored in page.messages)
            if page.more:
                return InboxesPage(found, key, page.messages[-1][0])
        return InboxesPage(found, None)

    def _with_mail(self, view: View, request: ScanInboxes) -> Iterator[bytes | None]:
        """Iterate over the keys with messages, or with messages that were reaped since.

        `None` means that the turn is used up.
        """
        bound: bytes | None = keys.data_span(request.start, request.end).lower
        upper = keys.data_span(request.start, request.end).upper
        while bound is not None:
            span, bound = keys.KeySpan(bound, upper), None
            for raw, end, stored in columns.beside(view, span, keys.INBOX, keys.ACCOUNTING):
                view.steps += 1
                if stored is not None:
                    yield keys.unescape(raw[1:end])
                    bound = raw[: end + 2] + keys.SUFFIX_END
                    break
                if view.is_used_up():
                    bound = raw + b"\x00"
                    yield None
                    break

    # --- reaped messages

    def scan_reaped(self, view: View, request: ScanReaped) -> Generator[None, None, ReapedPage]:
        """Evaluate ``ScanReaped``, over as many turns as it takes.

        Raises:
            SnapshotTooOld: the first messages that left may have been collected.
        """
        self._check_age(view, request.timestamp)
        self._check_age(view, request.after)
        page = ReapedPage([], None)
        messages, room = 0, page_bytes(request.bytes_max)
        place, passed = request.resume[:-4], int.from_bytes(request.resume[-4:], "big")
        for found in self._left(view, request, place):
            if found is None:
                yield
                self._check_age(view, request.after)
                continue
            raw, end, stored = found
            taken = _taken.decode(stored)
            skip = passed if raw[1:] == place else 0
            few: list[tuple[bytes, bytes]] = []
            for number, pair in enumerate(taken[skip:], skip):
                if messages and (messages >= LIST_MAX or room <= 0):
                    return ReapedPage(page.records, raw[1:] + keys.u32(number))
                if not few:
                    page.records.append((keys.user_key(raw), *_when(raw, end), few))
                few.append(pair)
                messages += 1
                room -= len(pair[1]) + len(raw)
            view.steps += len(few)
        return page

    def _left(
        self, view: View, request: ScanReaped, place: bytes
    ) -> Iterator[tuple[bytes, int, bytes] | None]:
        """Iterate over the records of messages that left inboxes in time.

        `None` means that the turn is used up.
        """
        lower, upper = keys.data_span(request.start, request.end)
        bound: bytes | None = max(lower, keys.DATA + place)
        while bound is not None:
            span, bound = keys.KeySpan(bound, upper), None
            for raw, end, stored in columns.beside(view, span, keys.REAPED, keys.ACCOUNTING):
                view.steps += 1
                if stored is not None and request.after < _when(raw, end)[0] <= request.timestamp:
                    yield raw, end, stored
                if view.is_used_up():
                    bound = raw + b"\x00"
                    yield None
                    break

    # --- outboxes and dead letters

    def scan_outbox(self, view: View, request: ScanOutbox) -> OutboxPage:
        """Evaluate ``ScanOutbox``.

        Raises:
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        reader = self._reader(view, request.timestamp)
        found: list[ScheduledEntry] = []
        size, bytes_max = 0, page_bytes(request.bytes_max)
        for name, stored in self._outbox_from(reader, request.after):
            if found and (size >= bytes_max or len(found) >= LIST_MAX or view.is_used_up()):
                return OutboxPage(found, found[-1].id)
            entry = _decoders[name[-1:]](stored)
            is_message = isinstance(entry, Deliverable)
            found.append(
                ScheduledEntry(name, entry if is_message else None, None if is_message else entry)
            )
            size += len(stored)
            view.steps += 1
        return OutboxPage(found, None)

    def _outbox_from(self, reader: Reader, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        for kind in (keys.DELIVERABLE, keys.EXECUTABLE):
            if after and after[-1:] > kind:
                continue
            prefix = keys.outbox_prefix(self._range_id, kind)
            lower = prefix + after[:-1] + b"\x00" if after[-1:] == kind else prefix
            for key, stored in reader.iterate(lower, keys.after_prefix(prefix)):
                yield key[len(prefix) :] + kind, stored

    def scan_dead_letters(self, view: View, request: ScanDeadLetters) -> LettersPage:
        """Evaluate ``ScanDeadLetters``.

        Raises:
            SnapshotTooOld: the timestamp is not protected as a whole.
        """
        reader = self._reader(view, request.timestamp)
        prefix = keys.dead_letter_prefix(self._range_id)
        found: list[StoredDeadLetter] = []
        size, bytes_max = 0, page_bytes(request.bytes_max)
        lower = prefix + request.after + b"\x00" if request.after else prefix
        for key, stored in reader.iterate(lower, keys.after_prefix(prefix)):
            if found and (size >= bytes_max or len(found) >= LIST_MAX or view.is_used_up()):
                return LettersPage(found, found[-1].id)
            found.append(StoredDeadLetter(key[len(prefix) :], _records.decode(stored)))
            size += len(stored)
            view.steps += 1
        return LettersPage(found, None)


def _when(raw: bytes, end: int) -> tuple[int, bool]:
    """Return when messages left an inbox, and whether they were consumed."""
    stamp, consumed = keys.reaped_in(raw, end)
    return int.from_bytes(stamp, "big"), consumed
