"""The reads of an inbox: free messages for reaps, peeks; and the check that they still are true.

A message is free if no other transaction holds it, and nothing holds it up (:mod:`.inbox_index`).
A reap is given the first free messages. A client that empties an inbox reaps again and again, and
each time the engine would be asked for a few messages. A reap that goes on where the one before it
has ended reads more than was asked for. The reaps after it are given those messages::

    given before        begin
    ... 1  2  3  4   │    5  6  7  8  9 ... 400
                      └─── from here to the last of them, exactly these are there ───┘

Invariant: from ``begin`` to the last message of a stretch, the applied state holds exactly its
messages. Every write to inboxes keeps it true, as with the claims. Messages that arrive among them
cut the stretch off. A stretch is forgotten if one of its messages is taken out. Both happen at
evaluation, and once more at application, since a reap may have read in between. A leaseholder
begins with nothing. Stretches know no claims: a stretch is used from ``begin`` on, and only if
nothing behind that is claimed. Inboxes that are held up have none.

Reaped messages stay readable to ``peek`` at a past timestamp until garbage collection: each reap
writes one record of what it took, beside the inbox.

``CheckInbox`` goes along with the writes of a transaction that found an inbox empty, or has peeked
into one. The commit compares the inbox at its evaluation, so nothing has to be kept for the
comparison, and nothing that is collected is missed. The transaction takes its place in the order of
commits now, and would see the same now.

A message belongs to an inbox from its delivery on, and is delivered after its sender's commit. A
commit counts with all that it sends, so messages on their way are looked for too::

    earlier in this proposal       delivered at its end: among what was sent so far
    due, in the outbox             behind a message that was scheduled: delivered a turn later

A scheduled message that is not due is not there, for any transaction.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import msgspec

from postroom.errors import TransactionConflict, shorten
from postroom.kv import keys
from postroom.limits import LIST_MAX, READ_AHEAD_BYTES_MAX, READ_AHEAD_INBOXES_MAX, READ_BYTES_MAX
from postroom.messaging.handover.outgoing import Outgoing
from postroom.messaging.inbox_index import read_mail
from postroom.messaging.outbox import Outbox, Parcel
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    CheckInbox,
    Delivered,
    InboxIndexEntry,
    Peek,
    Peeked,
    ReapQueue,
    Trial,
)
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry

MESSAGES: Final = 400
"""The number of messages that are read at once, if fewer are asked for."""
DUE_LOOKED_AT_ONCE: Final = 1000
"""The number of due messages above which any inbox may get one, and the transaction is retried."""
LAST_ID: Final = b"\xff" * MESSAGE_ID_BYTES
_NIL: Final = 0xC0
"""The last byte of an inbox entry that has no trial."""

Stored: TypeAlias = list[tuple[bytes, bytes]]
"""The ids of messages, and their stored forms."""

_id: Final = itemgetter(0)
_delivered = msgspec.msgpack.Decoder(Delivered)
_taken = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


def trial_of(stored: bytes) -> Trial | None:
    """Return the trial of a stored message; only a message with one is decoded."""
    return None if stored[-1] == _NIL else _delivered.decode(stored).trial


class Free(NamedTuple):
    """The range of free messages: from ``start`` on, without those ``claimed``."""

    start: bytes
    claimed: dict[bytes, bytes]


@dataclass(slots=True)
class _Stretch:
    """A stretch: the messages from ``begin`` on, without the first ``given`` of ``messages``."""

    begin: bytes
    messages: Stored
    given: int = 0


class ReadAhead:
    """The stretches of one range, by inbox, for the inboxes reaped last.

    Its length is how many messages it holds.
    """

    def __init__(self) -> None:
        self._stretches: dict[bytes, _Stretch] = {}

    def __len__(self) -> int:
        return sum(len(each.messages) - each.given for each in self._stretches.values())

    def clear(self) -> None:
        """Forget everything."""
        self._stretches.clear()

    def find(
        self, key: bytes, start: bytes, asked: int, bytes_max: int
    ) -> tuple[Stored, bytes] | None:
        """Return the first messages from ``start`` on, and the id of the next one after them.

        These are at most ``asked`` messages of ``bytes_max`` bytes, but at least one. `None` means
        that they are not known here.
        """
        stretch = self._stretches.get(key)
        if stretch is None or start < stretch.begin or asked < 1:
            return None
        messages, given = stretch.messages, stretch.given
        if given + asked >= len(messages) or start > messages[given][0]:
            return None
        found, following = messages[given : given + asked], messages[given + asked][0]
        if bytes_max < READ_AHEAD_BYTES_MAX:  # the size of a stretch
            size = 0
            for number, (id_, stored) in enumerate(found):
                size += len(stored)
                if size > bytes_max and number:
                    return found[:number], id_
        return found, following

    def give(self, key: bytes, number: int) -> None:
        """Note that a reap was given the first messages of a stretch."""
        stretch = self._stretches[key]
        stretch.given += number
        stretch.begin = stretch.messages[stretch.given - 1][0] + b"\x00"

    def forget(self, key: bytes) -> None:
        """Forget the stretch of an inbox."""
        self._stretches.pop(key, None)

    def read(
        self,
        key: bytes,
        start: bytes,
        given: Stored,
        beyond: tuple[bytes, bytes],
        entries: Iterator[tuple[bytes, bytes]],
    ) -> int:
        """Read ahead after a reap that was ``given`` messages from ``start`` on.

        Args:
            key: the key of the inbox.
            start: the id from which the messages given begin; nothing lies between.
            given: the messages given, which follow each other.
            beyond: the entry right after them: its engine key and its stored form.
            entries: the entries after that.

        Returns:
            How many more were read: only if the reap goes on where the one before has ended.
        """
        before = self._stretches.pop(key, None)
        messages: Stored = []
        if before is not None and start >= before.begin:
            size, number = 0, len(given)
            room = max(MESSAGES // number * number + 1 - number, 0)
            for raw, stored in islice(chain((beyond,), entries), room):
                size += len(stored)
                if size > READ_AHEAD_BYTES_MAX:
                    break
                messages.append((raw[-MESSAGE_ID_BYTES:], stored))
        self._stretches[key] = _Stretch(given[-1][0] + b"\x00", messages)
        if len(self._stretches) > READ_AHEAD_INBOXES_MAX:
            del self._stretches[next(iter(self._stretches))]
        return len(messages)

    def arrives(self, first: Mapping[bytes, bytes]) -> None:
        """Cut stretches off where messages arrive: by inbox, the least of their ids."""
        for key, id_ in first.items() if self._stretches else ():
            stretch = self._stretches.get(key)
            if stretch is not None:
                # If the least is before ``begin``, others may be anywhere in the stretch.
                left = bisect_left(stretch.messages, id_, key=_id)
                del stretch.messages[left:]
                stretch.given = min(stretch.given, left)

    def gone(self, key: bytes, ids: list[bytes]) -> None:
        """Forget a stretch of which messages are taken out that were not given to a reap."""
        stretch = self._stretches.get(key)
        if stretch is not None and max(ids) >= stretch.begin:
            del self._stretches[key]


def first_free(
    view: View, request: ReapQueue, mail: InboxIndexEntry, free: Free, ahead: ReadAhead
) -> tuple[Stored, bool, bytes]:
    """Return the oldest free messages, whether there are more, and the id of the next one.

    The next one is the one that comes right after them; its id is empty if it is not known.
    """
    key = request.key
    if mail.held and free.start >= mail.held:
        return [], False, b""
    is_plain = not (free.claimed or mail.held)
    asked = min(request.messages_max, LIST_MAX)
    known = ahead.find(key, free.start, asked, request.bytes_max) if is_plain else None
    taken, following = known or _read(view, request, mail, free, ahead)
    view.steps += len(taken)
    if request.attempts_max and (together := _together(taken)) < len(taken):
        following = taken[together][0]
        del taken[together:]
        ahead.forget(key)
    elif known is not None:
        ahead.give(key, len(taken))
    return taken, bool(following), b"" if free.claimed else following


def _read(
    view: View, request: ReapQueue, mail: InboxIndexEntry, free: Free, ahead: ReadAhead
) -> tuple[Stored, bytes]:
    """Read free messages; return them and the id of the next one. Keep more for a later reap."""
    prefix, claimed = keys.inbox_prefix(request.key), free.claimed
    entries = view.iterate(prefix + free.start, prefix + (mail.held or LAST_ID))
    if claimed:
        entries = (each for each in entries if each[0][-MESSAGE_ID_BYTES:] not in claimed)
    found, beyond = _fill(entries, min(request.messages_max, LIST_MAX), request.bytes_max)
    taken = [(raw[-MESSAGE_ID_BYTES:], stored) for raw, stored in found]
    if beyond is None:
        return taken, b""
    if taken and not (claimed or mail.held):
        view.steps += ahead.read(request.key, free.start, taken, beyond, entries)
    return taken, beyond[0][-MESSAGE_ID_BYTES:]


def _together(found: Stored) -> int:
    """Return how many of the messages are given together.

    A message that was tried before is given alone, so that messages that were tried along with it
    do not share its end.
    """
    for number, (_, stored) in enumerate(found):
        if stored[-1] != _NIL and trial_of(stored) is not None:  # most have none: no call for them
            return max(number, 1)
    return len(found)


def _fill(
    entries: Iterable[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, bytes] | None]:
    """Return the first entries up to a number and a size, and the first one beyond, or `None`.

    At least one entry is returned, and at most one beyond the page is read.
    """
    left = iter(entries)
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in islice(left, max(entries_max, 0)):
        size += len(entry[1])
        if size > bytes_max and found:
            return found, entry
        found.append(entry)
    return found, next(left, None)


class Peeks:
    """The evaluator of ``Peek``.

    Args:
        check_age: a function that refuses a timestamp that is collected or still to come.
    """

    def __init__(self, check_age: Callable[[View, int], None]) -> None:
        self._check_age = check_age

    def register(self, registry: Registry) -> None:
        """Register the read."""
        registry.reads[Peek] = self.peek

    def peek(self, view: View, request: Peek) -> Peeked | Generator[None, None, Peeked]:
        """Evaluate ``Peek``, as of now or of a timestamp, with what has been reaped since."""
        if request.timestamp:
            self._check_age(view, request.timestamp)
            return self.peek_then(view, request)
        found, beyond = _fill(_waiting_now(view, request), *_page(request))
        view.steps += len(found)
        return Peeked(found, beyond is not None, view.now)

    def peek_then(self, view: View, request: Peek) -> Generator[None, None, Peeked]:
        """Evaluate ``Peek`` as of a timestamp, over as many turns as it takes.

        It keeps only the first of the messages reaped since, as many as a page may need.
        """
        key, at, first = request.key, request.timestamp, _first_after(request)
        messages_max, bytes_max = _page(request)
        lower, _ = keys.suffix_span(key, keys.REAPED)
        records = view.iterate(lower, keys.reaped_key(key, keys.u64(at)))
        waiting = _entries(view, key, first)  # read now, like the records
        reaped: list[tuple[bytes, bytes]] = []
        for _, packed in records:
            taken = _taken.decode(packed)
            view.steps += 1 + len(taken)
            reaped += (pair for pair in taken if pair[0] >= first and _was_there(pair[1], at))
            if len(reaped) > 2 * messages_max or _size(reaped) > 2 * bytes_max:
                reaped = _first_of(reaped, messages_max, bytes_max)
            if view.is_used_up():
                yield
                self._check_age(view, at)
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for pair in heapq.merge(waiting, sorted(reaped)):
            view.steps += 1
            if _was_there(pair[1], at):
                size += len(pair[1])
                if len(found) >= messages_max or (size > bytes_max and found):
                    return Peeked(found, True, at)
                found.append(pair)
            if view.is_used_up():
                yield
        return Peeked(found, False, at)


def _waiting_now(view: View, request: Peek) -> Iterator[tuple[bytes, bytes]]:
    mail = read_mail(view, request.key)
    if mail is None:
        return iter(())
    return _entries(view, request.key, max(mail.oldest, _first_after(request)))


def _page(request: Peek) -> tuple[int, int]:
    """Return how many messages, and bytes of them, an answer has at most."""
    return min(request.messages_max, LIST_MAX), min(request.bytes_max, READ_BYTES_MAX)


def _was_there(stored: bytes, at: int) -> bool:
    return _delivered.decode(stored).delivered_at <= at


def _size(messages: list[tuple[bytes, bytes]]) -> int:
    return sum(len(stored) for _, stored in messages)


def _first_of(
    messages: list[tuple[bytes, bytes]], messages_max: int, bytes_max: int
) -> list[tuple[bytes, bytes]]:
    """Return the first of ``messages``, one more than a page takes."""
    messages.sort()
    size = 0
    for number, (_, stored) in enumerate(messages):
        size += len(stored)
        if number >= messages_max or (number and size > bytes_max):
            return messages[: number + 1]
    return messages


def _first_after(request: Peek) -> bytes:
    """Return the least id that the page may begin with."""
    return b"" if request.after is None else request.after + b"\x00"


def _entries(view: View, key: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the messages in the inbox of ``key`` from the id ``first`` on."""
    prefix = keys.inbox_prefix(key)
    entries = view.iterate(prefix + first, prefix + LAST_ID)
    return ((raw[-MESSAGE_ID_BYTES:], stored) for raw, stored in entries)


class _OnTheirWay:
    """The recipients of messages on their way, as far as a proposal has come."""

    def __init__(self, due: set[bytes] | None, outgoing: Outgoing) -> None:
        self._due = due
        self._outgoing = outgoing
        self._sent_to: set[bytes] = set()
        self._looked_at = 0

    def includes(self, ctx: Evaluation, key: bytes) -> bool:
        """Return whether ``key`` is about to get a message committed before this transaction."""
        if self._due is None or key in self._due or self._outgoing.joins(key):
            return True
        sent = ctx.sent_before()
        parcels: list[Parcel] = ctx.sent[self._looked_at : sent]
        for due, _, message, _, _ in parcels:
            if due <= ctx.timestamp:
                self._sent_to.add(message.key)
        self._looked_at = sent
        return key in self._sent_to


def check_inbox(
    outbox: Outbox, ctx: Evaluation, request: CheckInbox
) -> Generator[None, None, None]:
    """Evaluate ``CheckInbox``, over several turns if many messages were seen.

    Raises:
        TransactionConflict: the inbox is not as the transaction saw it.
    """
    key, ids = request.key, request.ids
    mail = read_mail(ctx, key)
    if request.messages is not None:
        there = 0 if mail is None else mail.messages
        if there != request.messages or _on_their_way(ctx, outbox).includes(ctx, key):
            raise _changed(key)
    if not ids:
        return
    if mail is None or mail.oldest != ids[0]:
        raise _changed(key)
    prefix = keys.inbox_prefix(key)
    entries = ctx.iterate(prefix + ids[0], prefix + LAST_ID)
    for id_ in ids:
        ctx.steps += 1
        raw, _ = next(entries, (b"", b""))
        if raw[-MESSAGE_ID_BYTES:] != id_:
            raise _changed(key)
        if ctx.is_used_up():
            yield


def _on_their_way(ctx: Evaluation, outbox: Outbox) -> _OnTheirWay:
    """Return the recipients of this proposal, read with its first check."""
    known = ctx.scratch.get(_OnTheirWay)
    if known is None:
        due = outbox.recipients_due(ctx, DUE_LOOKED_AT_ONCE)
        ctx.steps += len(due or ())
        ctx.scratch[_OnTheirWay] = known = _OnTheirWay(due, outbox.outgoing)
    on_their_way: _OnTheirWay = known
    return on_their_way


def _changed(key: bytes) -> TransactionConflict:
    return TransactionConflict(
        f"the inbox of {shorten(key)} is not any more as this transaction has seen it; nothing was "
        "changed: try again (run() does)"
    )
