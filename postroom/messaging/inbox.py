"""Inboxes: delivering into them, reading them, reaping them.

The index of inboxes (*mail*) has an entry for each inbox that holds something: how many messages,
and the id of the first. It answers who has mail without scanning the keys, and it is the inbox's
head cursor: reading starts at the first message, never at the tombstones of those before it, also
after a restart. A delayed message with an old id simply becomes the first.

Reaping takes the oldest messages that no other transaction holds. The claims are locks in the
leaseholder's memory; the commit checks that the messages are still there, and deletes exactly them.
What was reaped stays readable to ``peek`` at a past timestamp until garbage collection: each reap
leaves one record of what it took, beside the inbox.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from postroom.errors import TransactionConflict, shorten
from postroom.kv import keys
from postroom.messaging.claims import Claims
from postroom.messaging.pages import fill
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    Delivered,
    Inbox,
    ListInboxes,
    Mail,
    Peek,
    Peeked,
    Reaped,
    ReapMessages,
    ReapQueue,
)
from postroom.messaging.tokens import Arrival
from postroom.ranges.evaluation import Evaluation, MustWait, View
from postroom.ranges.holders import Holders
from postroom.ranges.registry import Registry

Arrivals: TypeAlias = dict[bytes, list[tuple[bytes, bytes]]]
"""By recipient: the ids and the stored form of messages that reach it."""

_encode = msgspec.msgpack.encode
_mail = msgspec.msgpack.Decoder(Mail)
_delivered = msgspec.msgpack.Decoder(Delivered)
_taken = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


class Inboxes:
    """The inboxes of one range.

    Args:
        check_age: refuses a timestamp that is collected or still to come.
        wake: answers what waits for tokens.
        holders: told which transactions hold messages.
    """

    def __init__(
        self,
        check_age: Callable[[View, int], None],
        wake: Callable[[list[object]], None],
        holders: Holders,
    ) -> None:
        self._check_age = check_age
        self._wake = wake
        self._holders = holders
        self._claims = Claims()

    def register(self, registry: Registry) -> None:
        """Adds them to ``registry``."""
        registry.reads |= {
            ReapQueue: self.reap_queue,
            Peek: self.peek,
            ListInboxes: self.list_inboxes,
        }
        registry.locking.add(ReapQueue)
        registry.writes[ReapMessages] = self.reap_messages
        registry.on_lease.append(lambda _: self._claims.clear())
        registry.on_lease_end.append(self._claims.clear)
        registry.on_release.append(self._claims.release)
        registry.sizes["claims"] = self._claims.__len__

    # --- delivering

    def deliver(self, ctx: Evaluation, arrivals: Arrivals) -> int:
        """Puts messages into the inboxes of their recipients; answers how many there were."""
        writes, delivered = ctx.writes, 0
        for key, messages in arrivals.items():
            prefix = keys.inbox_prefix(key)
            for id_, stored in messages:
                writes[prefix + id_] = stored
            delivered += len(messages)
            self._announce(ctx, key, len(messages), min(messages)[0])
        ctx.after.append(lambda: self._arrived(arrivals))
        return delivered

    def _announce(self, ctx: Evaluation, key: bytes, messages: int, oldest: bytes) -> None:
        index = keys.mail_key(key)
        stored = ctx.get(index)
        if stored is not None:
            before = _mail.decode(stored)
            messages += before.messages
            oldest = min(oldest, before.oldest)
        ctx.writes[index] = _encode(Mail(messages, oldest))

    def _arrived(self, arrivals: Arrivals) -> None:
        for key, messages in arrivals.items():
            self._claims.arrived(key, min(messages)[0])
        self._wake([Arrival(key) for key in arrivals])

    # --- reaping

    def reap_queue(self, view: View, request: ReapQueue) -> Reaped:
        """``ReapQueue``: the oldest messages that nobody else holds, claimed."""
        mail = read_mail(view, request.key)
        taken: list[tuple[bytes, bytes]] = []
        more = False
        if mail is not None:
            free = self._claims.free(request.key, mail.oldest)
            prefix = keys.inbox_prefix(request.key)
            entries = view.iterate(prefix + free.start, prefix + b"\xff" * MESSAGE_ID_BYTES)
            unclaimed = ((raw[-20:], v) for raw, v in entries if raw[-20:] not in free.claimed)
            taken, more = fill(unclaimed, request.messages_max, request.bytes_max)
        if not taken and request.wait:
            raise MustWait(Arrival(request.key))
        if taken:
            ids = [id_ for id_, _ in taken]
            self._claims.claim(request.key, request.transaction_id, ids)
            self._holders.hold(request.transaction_id, request.seconds_max)
            return Reaped(taken, more)
        there = 0 if mail is None else mail.messages
        held = self._claims.held_by(request.transaction_id, request.key) if there else 0
        return Reaped([], more, held if held == there else None)

    def reap_messages(self, ctx: Evaluation, request: ReapMessages) -> None:
        """``ReapMessages``: deletes exactly these, if all of them are still there.

        Raises:
            TransactionConflict: another transaction has reaped one of them.
        """
        key, stamp = request.key, ctx.stamp
        mail = read_mail(ctx, key)
        if mail is None:
            raise _reaped_by_another(key)
        found, oldest = self._find(ctx, request, mail)
        prefix = keys.inbox_prefix(key)
        writes = ctx.writes
        for id_, _ in found:
            writes[prefix + id_] = None
        left = mail.messages - len(found)
        writes[keys.mail_key(key)] = _encode(Mail(left, oldest)) if left else None
        history = keys.reaped_key(key, stamp)
        writes[history] = packed = _encode(found)
        ctx.garbage.append(history)
        ctx.count("reaped", len(found))
        ctx.grow(len(packed) + len(found) * (len(prefix) + MESSAGE_ID_BYTES))

    def _find(
        self, ctx: Evaluation, request: ReapMessages, mail: Mail
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The messages asked for, and the id of the first one that will be left."""
        prefix = keys.inbox_prefix(request.key)
        wanted = dict.fromkeys(request.ids)
        found: list[tuple[bytes, bytes]] = []
        oldest = mail.oldest
        if oldest in wanted:
            for raw, stored in ctx.iterate(prefix + oldest, prefix + b"\xff" * MESSAGE_ID_BYTES):
                oldest = raw[-MESSAGE_ID_BYTES:]
                if oldest not in wanted:
                    break
                del wanted[oldest]
                found.append((oldest, stored))
        for id_ in wanted:
            message = ctx.get(prefix + id_)
            if message is None:
                raise _reaped_by_another(request.key)
            found.append((id_, message))
        return found, oldest

    # --- reading

    def peek(self, view: View, request: Peek) -> Peeked:
        """``Peek``: as of now, or as of a timestamp, with what has been reaped since."""
        if request.timestamp:
            self._check_age(view, request.timestamp)
            messages = _waiting_then(view, request)
        else:
            messages = _waiting_now(view, request)
        found, more = fill(messages, request.messages_max, request.bytes_max)
        return Peeked(found, more, request.timestamp or view.now)

    def list_inboxes(self, view: View, request: ListInboxes) -> list[Inbox]:
        """``ListInboxes``."""
        span = keys.mail_span(request.start, request.end)
        decode = _mail.decode
        found = ((decode(mail), raw) for raw, mail in view.iterate(*span))
        first = heapq.nsmallest(
            request.inboxes_max, found, key=lambda pair: (pair[0].oldest, pair[1])
        )
        return [
            Inbox(keys.user_key(raw), mail.messages, int.from_bytes(mail.oldest[:8], "big"))
            for mail, raw in first
        ]


def read_mail(reader: View | Evaluation, key: bytes) -> Mail | None:
    """The entry of an inbox in the index; ``None``: it holds nothing."""
    stored = reader.get(keys.mail_key(key))
    return None if stored is None else _mail.decode(stored)


def _waiting_now(view: View, request: Peek) -> Iterator[tuple[bytes, bytes]]:
    mail = read_mail(view, request.key)
    if mail is None:
        return iter(())
    return _entries(view, request.key, max(mail.oldest, _first_after(request)))


def _waiting_then(view: View, request: Peek) -> Iterator[tuple[bytes, bytes]]:
    key, at, first = request.key, request.timestamp, _first_after(request)
    reaped = (pair for pair in _reaped_since(view, key, at) if pair[0] >= first)
    merged = heapq.merge(_entries(view, key, first), sorted(reaped))
    return (pair for pair in merged if _delivered.decode(pair[1]).delivered_at <= at)


def _first_after(request: Peek) -> bytes:
    """The least id that the page may begin with."""
    return b"" if request.after is None else request.after + b"\x00"


def _entries(view: View, key: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What is in the inbox of ``key`` from the id ``first`` on."""
    prefix = keys.inbox_prefix(key)
    entries = view.iterate(prefix + first, prefix + b"\xff" * MESSAGE_ID_BYTES)
    return ((raw[-MESSAGE_ID_BYTES:], stored) for raw, stored in entries)


def _reaped_since(view: View, key: bytes, at: int) -> list[tuple[bytes, bytes]]:
    lower, _ = keys.suffix_span(key, keys.REAPED)
    records = view.iterate(lower, keys.reaped_key(key, keys.u64(at)))
    return [message for _, packed in records for message in _taken.decode(packed)]


def _reaped_by_another(key: bytes) -> TransactionConflict:
    return TransactionConflict(
        f"another transaction has reaped a message of {shorten(key)} that this one had taken; "
        "nothing was changed: try again (run() does)"
    )
