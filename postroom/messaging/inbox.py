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
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeAlias

import msgspec

from postroom.errors import Invalid, TransactionConflict, shorten
from postroom.kv import keys
from postroom.limits import INBOXES_LISTED_MAX, READ_BYTES_MAX
from postroom.messaging.claims import Claims, Found
from postroom.messaging.pages import LIST_MAX, fill, fill_up_to
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
from postroom.ranges.evaluation import Evaluation, MustWait, View, check_size
from postroom.ranges.holders import Holders
from postroom.ranges.registry import Registry

Arrivals: TypeAlias = dict[bytes, list[tuple[bytes, bytes]]]
"""By recipient: the ids and the stored form of messages that reach it."""

_FEW: Final = 256

_encode = msgspec.msgpack.Encoder().encode
_mail = msgspec.msgpack.Decoder(Mail)
_mail_decode = _mail.decode
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
        registry.may_be_long[ReapMessages] = lambda write: len(write.ids) > _FEW
        registry.on_lease.append(lambda _: self._claims.clear())
        registry.on_lease_end.append(self._claims.clear)
        registry.on_release.append(self._claims.release)
        registry.sizes["claims"] = self._claims.__len__

    # --- delivering

    def deliver(self, ctx: Evaluation, arrivals: Arrivals) -> int:
        """Puts messages into the inboxes of their recipients; answers how many there were."""
        writes, delivered = ctx.writes, 0
        first: dict[bytes, bytes] = {}
        for key, messages in arrivals.items():
            prefix, index = keys.inbox_prefix(key), keys.mail_key(key)
            for id_, stored in messages:
                writes[prefix + id_] = stored
            number = len(messages)
            delivered += number
            first[key] = oldest = min(messages)[0]
            before = ctx.get(index)
            if before is not None:
                mail = _mail_decode(before)
                number += mail.messages
                oldest = min(oldest, mail.oldest)
            writes[index] = _encode((number, oldest))
        self._claims.arriving(first)
        ctx.after.append(lambda: self._arrived(first))
        return delivered

    def _arrived(self, first: dict[bytes, bytes]) -> None:
        self._claims.arrived(first)
        self._wake([Arrival(key) for key in first])

    # --- reaping

    def reap_queue(self, view: View, request: ReapQueue) -> Reaped:
        """``ReapQueue``: the oldest messages that nobody else holds, claimed."""
        mail = read_mail(view, request.key)
        taken: list[tuple[bytes, bytes]] = []
        more, following = False, b""
        if mail is not None:
            free = self._claims.free(request.key, mail.oldest)
            prefix = keys.inbox_prefix(request.key)
            entries = view.iterate(prefix + free.start, prefix + b"\xff" * MESSAGE_ID_BYTES)
            if free.claimed:
                entries = (each for each in entries if each[0][-20:] not in free.claimed)
            messages_max = min(request.messages_max, LIST_MAX)
            found, beyond = fill_up_to(entries, messages_max, request.bytes_max)
            taken = [(raw[-20:], stored) for raw, stored in found]
            view.steps += len(taken)
            if beyond is not None:
                more = True
                following = b"" if free.claimed else beyond[0][-MESSAGE_ID_BYTES:]
        if not taken and request.wait:
            raise MustWait(Arrival(request.key))
        if taken:
            self._claims.claim(request.key, request.transaction_id, taken, following)
            self._holders.hold(request.transaction_id, request.seconds_max)
            return Reaped(taken, more)
        there = 0 if mail is None else mail.messages
        held = self._claims.held_by(request.transaction_id, request.key) if there else 0
        return Reaped([], more, held if held == there else None)

    def reap_messages(
        self, ctx: Evaluation, request: ReapMessages
    ) -> Generator[None, None, None] | None:
        """``ReapMessages``: deletes exactly these, if all of them are still there.

        Raises:
            TransactionConflict: another transaction has reaped one of them.
            TransactionTooLarge: together they are more than a transaction may reap.
        """
        key = request.key
        mail = read_mail(ctx, key)
        if mail is None:
            raise _reaped_by_another(key)
        found = self._claims.take_found(key, ctx.transaction_id, request.ids)
        if found is None:
            return self._read_and_reap(ctx, request, mail)
        self._reap_found(ctx, key, mail, found)
        return None

    def _reap_found(self, ctx: Evaluation, key: bytes, mail: Mail, found: Found) -> None:
        """What this leaseholder has given to the transaction is still there: nothing is read but
        which message is the first that will be left.
        """
        prefix, messages = keys.inbox_prefix(key), found.messages
        size = found.size_bytes + len(messages) * (len(prefix) + 2 * MESSAGE_ID_BYTES)
        ctx.grow(size)
        check_size(size, "reap fewer messages in a transaction")
        ctx.steps += len(messages)
        ctx.writes.update(dict.fromkeys([prefix + id_ for id_, _ in messages]))
        oldest, left = mail.oldest, mail.messages - len(messages)
        if left and oldest == messages[0][0] and found.is_gapless and found.following:
            oldest = found.following
        elif left and oldest == messages[0][0]:
            start = messages[-1][0] + b"\x00" if found.is_gapless else oldest
            following = ctx.iterate(prefix + start, prefix + b"\xff" * MESSAGE_ID_BYTES)
            for raw, _ in following:
                oldest = raw[-MESSAGE_ID_BYTES:]
                break
        self._reaped(ctx, key, messages, Mail(left, oldest))

    def _reaped(
        self, ctx: Evaluation, key: bytes, found: list[tuple[bytes, bytes]], left: Mail
    ) -> None:
        """The records that tell of it; who else has found these has to look again."""
        ctx.writes[keys.mail_key(key)] = _encode(left) if left.messages else None
        history = keys.reaped_key(key, ctx.stamp)
        ctx.writes[history] = _encode(found)
        ctx.garbage.append(history)
        ctx.count("reaped", len(found))
        ids = [id_ for id_, _ in found]
        self._claims.gone(key, ids)
        ctx.after.append(lambda: self._claims.gone(key, ids))

    def _read_and_reap(
        self, ctx: Evaluation, request: ReapMessages, mail: Mail
    ) -> Generator[None, None, None]:
        """Over as many turns as it takes."""
        key, prefix = request.key, keys.inbox_prefix(request.key)
        oldest, found, size_before = mail.oldest, [], ctx.bytes
        for id_, message, is_found in self._find(ctx, request, mail):
            if is_found:
                found.append((id_, message))
                ctx.writes[prefix + id_] = None
                ctx.grow(len(message) + len(prefix) + 2 * MESSAGE_ID_BYTES)
                check_size(ctx.bytes - size_before, "reap fewer messages in a transaction")
            else:
                oldest = id_
            ctx.steps += 1
            if ctx.is_used_up():
                yield
        self._reaped(ctx, key, found, Mail(mail.messages - len(found), oldest))

    def _find(
        self, ctx: Evaluation, request: ReapMessages, mail: Mail
    ) -> Iterator[tuple[bytes, bytes, bool]]:
        """The messages asked for, and among them, not found, the first one that will be left."""
        prefix = keys.inbox_prefix(request.key)
        wanted = dict.fromkeys(request.ids)
        if mail.oldest in wanted:
            entries = ctx.iterate(prefix + mail.oldest, prefix + b"\xff" * MESSAGE_ID_BYTES)
            for raw, stored in entries:
                id_ = raw[-MESSAGE_ID_BYTES:]
                if id_ not in wanted:
                    yield id_, b"", False
                    break
                del wanted[id_]
                yield id_, stored, True
        for id_ in wanted:
            message = ctx.get(prefix + id_)
            if message is None:
                raise _reaped_by_another(request.key)
            yield id_, message, True

    # --- reading

    def peek(self, view: View, request: Peek) -> Peeked | Generator[None, None, Peeked]:
        """``Peek``: as of now, or as of a timestamp, with what has been reaped since."""
        if request.timestamp:
            self._check_age(view, request.timestamp)
            return self.peek_then(view, request)
        found, more = fill(_waiting_now(view, request), *_page(request))
        view.steps += len(found)
        return Peeked(found, more, view.now)

    def peek_then(self, view: View, request: Peek) -> Generator[None, None, Peeked]:
        """``Peek`` as of a timestamp, over as many turns as it takes. Of what was reaped since, as
        much is kept as a page may need: the first ones.
        """
        key, at, first = request.key, request.timestamp, _first_after(request)
        messages_max, bytes_max = _page(request)
        lower, _ = keys.suffix_span(key, keys.REAPED)
        records = view.iterate(lower, keys.reaped_key(key, keys.u64(at)))
        waiting = _entries(view, key, first)  # now, as both must be of the same moment
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

    def list_inboxes(self, view: View, request: ListInboxes) -> Generator[None, None, list[Inbox]]:
        """``ListInboxes``: goes through the index of the span, over as many turns as it takes.

        Raises:
            Invalid: there are more than were asked for, and that was more than one answer holds.
        """
        inboxes_max = min(request.inboxes_max, INBOXES_LISTED_MAX)
        first: list[_Waiting] = []
        start = request.start
        while inboxes_max:
            lower, upper = keys.mail_span(start, request.end)
            raw = b""
            for raw, stored in view.iterate(lower, upper):
                view.steps += 1
                mail = _mail.decode(stored)
                waiting = _Waiting((mail.oldest, raw, mail.messages))
                if len(first) < inboxes_max:
                    heapq.heappush(first, waiting)
                elif request.inboxes_max > inboxes_max:
                    raise Invalid(
                        f"the span has more than {inboxes_max} inboxes with mail, which is as many "
                        "as one request lists: list parts of it, or give a lower limit"
                    )
                elif first[0] < waiting:
                    heapq.heapreplace(first, waiting)
                if view.is_used_up():
                    break
            else:
                break
            yield
            start = keys.user_key(raw) + b"\x00"
        first.sort(reverse=True)
        return [
            Inbox(keys.user_key(raw), messages, int.from_bytes(oldest[:8], "big"))
            for (oldest, raw, messages) in (waiting.mail for waiting in first)
        ]


class _Waiting:
    """An inbox in a heap whose root is the one that has waited least."""

    __slots__ = ("mail",)

    def __init__(self, mail: tuple[bytes, bytes, int]) -> None:
        self.mail = mail

    def __lt__(self, other: _Waiting) -> bool:
        return self.mail > other.mail


def read_mail(reader: View | Evaluation, key: bytes) -> Mail | None:
    """The entry of an inbox in the index; ``None``: it holds nothing."""
    stored = reader.get(keys.mail_key(key))
    return None if stored is None else _mail.decode(stored)


def _waiting_now(view: View, request: Peek) -> Iterator[tuple[bytes, bytes]]:
    mail = read_mail(view, request.key)
    if mail is None:
        return iter(())
    return _entries(view, request.key, max(mail.oldest, _first_after(request)))


def _page(request: Peek) -> tuple[int, int]:
    """How many messages, and bytes of them, one answer holds."""
    return min(request.messages_max, LIST_MAX), min(request.bytes_max, READ_BYTES_MAX)


def _was_there(stored: bytes, at: int) -> bool:
    return _delivered.decode(stored).delivered_at <= at


def _size(messages: list[tuple[bytes, bytes]]) -> int:
    return sum(len(stored) for _, stored in messages)


def _first_of(
    messages: list[tuple[bytes, bytes]], messages_max: int, bytes_max: int
) -> list[tuple[bytes, bytes]]:
    """The first of ``messages``, one more than a page takes."""
    messages.sort()
    size = 0
    for number, (_, stored) in enumerate(messages):
        size += len(stored)
        if number >= messages_max or (number and size > bytes_max):
            return messages[: number + 1]
    return messages


def _first_after(request: Peek) -> bytes:
    """The least id that the page may begin with."""
    return b"" if request.after is None else request.after + b"\x00"


def _entries(view: View, key: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """What is in the inbox of ``key`` from the id ``first`` on."""
    prefix = keys.inbox_prefix(key)
    entries = view.iterate(prefix + first, prefix + b"\xff" * MESSAGE_ID_BYTES)
    return ((raw[-MESSAGE_ID_BYTES:], stored) for raw, stored in entries)


def _reaped_by_another(key: bytes) -> TransactionConflict:
    return TransactionConflict(
        f"another transaction has reaped a message of {shorten(key)} that this one had taken; "
        "nothing was changed: try again (run() does)"
    )
