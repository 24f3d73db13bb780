"""The index of inboxes: an entry for each that holds something, or is held up.

An entry has the number of messages, and the id of the first. Thus the inboxes with mail are known
without a scan of the keys, and reading begins at the first message.

Postponed messages hold up the inbox to which they will come back.

The messages behind such a message (with larger ids) are given to nobody until it is there again.
There is a record for each, which says where it waits in the outbox. The index of inboxes names the
first of them. A record has no effect if its message no longer waits there.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Reader, ValueReader
from postroom.limits import INBOXES_BY_KEY_MAX, INBOXES_LISTED_MAX
from postroom.messaging.inbox_order import InboxOrder, is_held_up
from postroom.messaging.requests import MESSAGE_ID_BYTES, Inbox, InboxIndexEntry, ListInboxes
from postroom.ranges.evaluation import Evaluation, View


def hold_up(ctx: Evaluation, key: bytes, id_: bytes, waits_at: bytes) -> None:
    """Let the message ``id_`` hold up the inbox of ``key`` while it waits at an engine key."""
    lower, _ = keys.hold_up_span(key)
    ctx.writes[lower + id_] = waits_at
    ctx.grow(len(lower) + len(id_) + len(waits_at))


def first_left(ctx: Evaluation, key: bytes, first: bytes, back: Iterable[bytes]) -> bytes:
    """Return the first message that holds up the inbox, after some do not wait any more.

    Args:
        key: the key of the inbox.
        first: the first one until now.
        back: the messages that have come back, or will not.

    Returns:
        Its id; empty: none does.
    """
    lower, upper = keys.hold_up_span(key)
    for id_ in back:
        if ctx.get(lower + id_) is not None:
            ctx.writes[lower + id_] = None
    for record, waits_at in ctx.iterate(lower + first, upper):
        ctx.steps += 1
        if ctx.get(waits_at) is not None:
            return record[len(lower) :]
        ctx.writes[record] = None
    return b""


_encode = msgspec.msgpack.encode
_mail = msgspec.msgpack.Decoder(InboxIndexEntry)

_PAGE: Final = 256
"""A search looks at so many inboxes at a time. The order is built for a span that has more."""

_Search: TypeAlias = Iterator[list[Inbox] | None]
"""The pages of a search, with the answer at the end."""


def read_mail(reader: ValueReader, key: bytes) -> InboxIndexEntry | None:
    """Return the entry of an inbox in the index; `None`: it is empty and not held up."""
    stored = reader.get(keys.mail_key(key))
    return None if stored is None else _mail.decode(stored)


def write_mail(ctx: Evaluation, key: bytes, left: InboxIndexEntry) -> None:
    """Write the entry of an inbox in the index; delete that of an empty one that is not held up."""
    ctx.writes[keys.mail_key(key)] = stored_mail(left)


def stored_mail(left: InboxIndexEntry) -> bytes | None:
    """Return the stored form of an entry; `None`: none is needed."""
    if not left.messages and left.oldest:
        left = InboxIndexEntry(0, b"", left.held)
    return _encode(left) if left.messages or left.held else None


def mail_entries(reader: Reader, span: keys.KeySpan) -> Iterator[tuple[bytes, InboxIndexEntry]]:
    """Iterate over the entries in a span of engine keys, with these keys, in order."""
    for raw, stored in reader.iterate(*span):
        yield raw, _mail.decode(stored)


class InboxLists:
    """The evaluator of ``ListInboxes``.

    It reads through a few inboxes. If there are many, the order in memory tells the first ones. A
    span of keys is also read through, in turns with the order: inboxes of other spans may come
    before its own in the order. The search that ends first gives the answer. An answer that takes
    several turns shows each inbox as it was when it was read.
    """

    def __init__(self, order: InboxOrder) -> None:
        self._order = order

    def list_inboxes(self, view: View, request: ListInboxes) -> Generator[None, None, list[Inbox]]:
        """Evaluate a request, over as many turns as it takes.

        Raises:
            Invalid: an answer would have too many inboxes, or too many bytes of keys.
        """
        if request.by_key:
            return _list_by_key(view, request)
        return self._list_oldest(view, request)

    def _list_oldest(self, view: View, request: ListInboxes) -> Generator[None, None, list[Inbox]]:
        searches = [_look_through(view, request)]
        if not self._order.is_built():
            answer = next(searches[0])
            if answer is not None:
                return answer
            if view.is_used_up():
                yield
            yield from self._order.build(view)
        if not request.start and request.end is None:
            searches.clear()
        searches.insert(0, self._walk(view, request))
        while True:
            for search in searches:
                answer = next(search)
                if answer is not None:
                    return answer
                if view.is_used_up():
                    yield

    def _walk(self, view: View, request: ListInboxes) -> _Search:
        """Go through the order, as far as it is known; then through the index."""
        lower, upper = keys.mail_span(request.start, request.end)
        found: dict[bytes, _WaitingInbox] = {}
        listed_bytes, page = 0, [b""]
        while page and len(found) < request.inboxes_max:
            page = self._order.following(page[-1], _PAGE, ready=request.ready)
            for entry in page:
                view.steps += 1
                raw = entry[MESSAGE_ID_BYTES:]
                if not lower <= raw < upper:
                    continue
                if found.pop(raw, None) is None:  # otherwise it has moved since an earlier turn
                    listed_bytes += len(raw)
                found[raw] = _WaitingInbox(raw, _mail.decode(view.get(raw) or b""))
                _check_answer(len(found), listed_bytes)
                if len(found) >= request.inboxes_max:
                    break
            else:
                yield None
        if len(found) < request.inboxes_max and self._order.is_cut(ready=request.ready):
            yield from _look_through(view, request)
        else:
            yield [waiting.told() for waiting in found.values()]


def _look_through(view: View, request: ListInboxes) -> _Search:
    """Go through the index of the span, and keep the inboxes that have waited longest."""
    first: list[_WaitingInbox] = []
    listed_bytes = 0
    start: bytes | None = request.start
    inboxes_max = min(request.inboxes_max, INBOXES_LISTED_MAX + 1)
    while start is not None and inboxes_max:
        lower, upper = keys.mail_span(start, request.end)
        start = None
        for number, (raw, stored) in enumerate(view.iterate(lower, upper), 1):
            view.steps += 1
            waiting = _WaitingInbox(raw, _mail.decode(stored))
            if not waiting.counts(ready=request.ready):
                pass
            elif len(first) < inboxes_max:
                heapq.heappush(first, waiting)
                listed_bytes += len(raw)
            elif first[0] < waiting:
                listed_bytes += len(raw) - len(heapq.heapreplace(first, waiting).raw)
            _check_answer(len(first), listed_bytes)
            if number >= _PAGE or view.is_used_up():
                start = keys.user_key(raw) + b"\x00"
                break
        if start is not None:
            yield None
    first.sort(reverse=True)
    yield [waiting.told() for waiting in first]


def _check_answer(inboxes: int, listed_bytes: int) -> None:
    """Refuse an answer that is too large."""
    if inboxes > INBOXES_LISTED_MAX:
        raise Invalid(
            f"the span has more than {INBOXES_LISTED_MAX} inboxes with mail, which is as many "
            "as one request lists: list parts of it, or give a lower limit"
        )
    if listed_bytes > limits.INBOXES_LISTED_BYTES_MAX:
        raise Invalid(
            f"the keys of the inboxes with mail take more than "
            f"{limits.INBOXES_LISTED_BYTES_MAX} bytes, which is as much as one request "
            "lists: list parts of the span, or give a lower limit"
        )


def _list_by_key(view: View, request: ListInboxes) -> Generator[None, None, list[Inbox]]:
    """List the first inboxes in the order of their keys; look at no others."""
    found: list[Inbox] = []
    start: bytes | None = request.start
    while start is not None:
        lower, upper = keys.mail_span(start, request.end)
        start = None
        for raw, stored in view.iterate(lower, upper):
            view.steps += 1
            waiting = _WaitingInbox(raw, _mail.decode(stored))
            if waiting.counts(ready=request.ready):
                found.append(waiting.told())
                if len(found) >= min(request.inboxes_max, INBOXES_BY_KEY_MAX):
                    return found
            if view.is_used_up():
                start = keys.user_key(raw) + b"\x00"
                break
        if start is not None:
            yield
    return found


class _WaitingInbox:
    """An inbox in a heap whose root is the one that has waited least."""

    __slots__ = ("_held_up", "_mail", "raw")

    def __init__(self, raw: bytes, mail: InboxIndexEntry) -> None:
        self.raw = raw
        self._mail = mail
        self._held_up = is_held_up(mail)

    def counts(self, *, ready: bool) -> bool:
        """Return whether there is mail; with ``ready``, mail that nothing holds up."""
        return bool(self._mail.messages) and not (ready and self._held_up)

    def told(self) -> Inbox:
        """Return the inbox as it is answered."""
        mail, oldest = self._mail, int.from_bytes(self._mail.oldest[:8], "big")
        return Inbox(keys.user_key(self.raw), mail.messages, oldest, self._held_up)

    def __lt__(self, other: _WaitingInbox) -> bool:
        return (self._mail.oldest, self.raw) > (other._mail.oldest, other.raw)
