"""The index of inboxes, and the lists that are made of it.

The index has an entry for each inbox that holds something, or is held up: the number of messages,
and the id of the first. Thus the inboxes with mail are known without a scan of the keys, and
reading begins at the first message.

Postponed messages hold up the inbox to which they will come back. The messages behind such a
message (with larger ids) are given to nobody until it is there again. There is a record for each,
which says where it waits in the outbox. The index of inboxes names the first of them. A record has
no effect if its message no longer waits there.

The index is stored by key. An *order* by age is built from it, over several turns, when a request
needs the inboxes that have waited longest. From then on it follows the index entries that commits
write. Nothing of it is stored::

    index of inboxes ── read once ──▶ ┌ ready     (oldest message, key), ...  ┐
    commits ── their index entries ─▶ └ held up   (oldest message, key), ...  ┘ ──▶ the first ones

Each of the two orders keeps the first ``INBOXES_ORDERED_MAX`` inboxes, with
``INBOXES_ORDERED_BYTES_MAX`` of keys. If there are more, it is *cut*: it knows all inboxes before
its ``end``, and none after that. When half of such an order is gone, the index is read again; the
tens of thousands of messages that were taken meanwhile outweigh that cost.

Invariant: once it is built, an order has exactly the inboxes before its end, as they are applied.

The order is held as a transaction holds its locks. It is dropped when it was not used for a minute,
or with the lease. A commit that writes more than a turn has room for drops it, too.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import Reader, ValueReader, WriteSet
from postroom.limits import INBOXES_BY_KEY_MAX, INBOXES_LISTED_MAX
from postroom.messaging.requests import MESSAGE_ID_BYTES, Inbox, InboxIndexEntry, ListInboxes
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Registry

_encode = msgspec.msgpack.encode
_mail = msgspec.msgpack.Decoder(InboxIndexEntry)

_PAGE: Final = 256
"""A search looks at so many inboxes at a time. The order is built for a span that has more."""

_Search: TypeAlias = Iterator[list[Inbox] | None]
"""The pages of a search, with the answer at the end."""
UNUSED_SECONDS: Final = 60.0
HOLDER: Final = bytes(16)
"""The holder of the order in memory, which goes when it is not used for a while."""
_CHUNK: Final = 512


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


def is_held_up(mail: InboxIndexEntry) -> bool:
    """Return whether a postponed message holds up all messages of an inbox."""
    return bool(mail.held) and mail.oldest > mail.held


class _InboxOrder:
    """The order of inboxes that are ready, or held up, in chunks.

    An entry is the id of the oldest message, then the engine key.

    Attributes:
        end: the first entry that is not known; ``None``: all are.
    """

    def __init__(self) -> None:
        self.end: bytes | None = None
        self._entries: dict[bytes, bytes] = {}
        self._chunks: list[list[bytes]] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, raw: bytes, oldest: bytes) -> None:
        """Put an inbox into its place."""
        entry = oldest + raw
        if self._entries.get(raw) == entry:
            return
        self.remove(raw)
        if self.end is not None and entry >= self.end:
            return
        self._entries[raw] = entry
        self._bytes += len(raw)
        chunks = self._chunks
        if not chunks:
            chunks.append([entry])
            return
        index = self._chunk_index(entry)
        chunk = chunks[index]
        insort(chunk, entry)
        if len(chunk) > _CHUNK:
            chunks.insert(index + 1, chunk[_CHUNK // 2 :])
            del chunk[_CHUNK // 2 :]
        if self._is_above(limits.INBOXES_ORDERED_MAX, limits.INBOXES_ORDERED_BYTES_MAX):
            self._cut()

    def remove(self, raw: bytes) -> None:
        """Take an inbox out, if it is there."""
        entry = self._entries.pop(raw, None)
        if entry is None:
            return
        self._bytes -= len(raw)
        index = self._chunk_index(entry)
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, entry)]
        if not chunk:
            del self._chunks[index]

    def after(self, entry: bytes) -> Iterator[bytes]:
        """Iterate over the entries after one, or from the first one after an empty one."""
        if not self._chunks:
            return
        index = self._chunk_index(entry)
        chunk = self._chunks[index]
        yield from chunk[bisect_right(chunk, entry) :]
        for chunk in self._chunks[index + 1 :]:
            yield from chunk

    def is_low(self) -> bool:
        """Return whether it is cut, and most of its entries are gone."""
        inboxes_max, bytes_max = limits.INBOXES_ORDERED_MAX, limits.INBOXES_ORDERED_BYTES_MAX
        return self.end is not None and not self._is_above(inboxes_max // 2, bytes_max // 2)

    def _is_above(self, inboxes: int, bytes_: int) -> bool:
        return len(self._entries) > inboxes or self._bytes > bytes_

    def _chunk_index(self, entry: bytes) -> int:
        return max(bisect_right(self._chunks, entry, key=_first) - 1, 0)

    def _cut(self) -> None:
        dropped = self._chunks.pop()
        self.end = dropped[0]
        for entry in dropped:
            raw = entry[MESSAGE_ID_BYTES:]
            del self._entries[raw]
            self._bytes -= len(raw)


def _first(chunk: list[bytes]) -> bytes:
    return chunk[0]


class InboxOrder:
    """The order of the inboxes of one range, and the evaluator of ``ListInboxes``.

    A request reads through a few inboxes. If there are many, the order tells the first ones. A span
    of keys is also read through, in turns with the order: inboxes of other spans may come before
    its own in the order. The search that ends first gives the answer. An answer that takes several
    turns shows each inbox as it was when it was read.

    Args:
        holders: the holders of things in memory, which end this one if it is not used.
        bounds: the bounds of the range.
    """

    def __init__(self, holders: Holders, bounds: Bounds) -> None:
        self._holders = holders
        self._bounds = bounds
        self._ready, self._held_up = _InboxOrder(), _InboxOrder()
        self._cursor: bytes | None = b""
        self._followed: list[Callable[[WriteSet], None]] = []

    def register(self, registry: Registry) -> None:
        """Register the read and the size; follow what is written while it is built."""
        registry.reads[ListInboxes] = self.list_inboxes
        self._followed = registry.on_written
        registry.sizes["inboxes in order"] = self.__len__

    def __len__(self) -> int:
        return len(self._ready) + len(self._held_up)

    def is_built(self) -> bool:
        """Return whether it can be used, and keep it for another while."""
        if self._cursor is not None:
            return False
        self._holders.hold(HOLDER, UNUSED_SECONDS)
        return not (self._ready.is_low() or self._held_up.is_low())

    def build(self, view: View) -> Generator[None, None, None]:
        """Read the index of inboxes, over as many turns as it takes.

        Several requests may read it at the same time. Each goes on where the others have come to.
        """
        if self._cursor is None:
            self.drop()
        self._holders.hold(HOLDER, UNUSED_SECONDS)
        while self._cursor is not None:
            if not self._followed:  # at the beginning, or when it was dropped in an earlier turn
                self.drop()
                self._followed.append(self._hear)
            raw = b""
            rest = keys.mail_span(*self._bounds.clip(self._cursor, None))
            for raw, stored in view.iterate(*rest):
                view.steps += 1
                self._put(raw, stored)
                if view.is_used_up():
                    break
            else:
                self._cursor = None
                return
            self._cursor = keys.user_key(raw) + b"\x00"
            yield

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
        if not self.is_built():
            answer = next(searches[0])
            if answer is not None:
                return answer
            if view.is_used_up():
                yield
            yield from self.build(view)
        if (request.start, request.end) == (self._bounds.start, self._bounds.end):
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
            page = self.following(page[-1], _PAGE, ready=request.ready)
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
        if len(found) < request.inboxes_max and self.is_cut(ready=request.ready):
            yield from _look_through(view, request)
        else:
            yield [waiting.told() for waiting in found.values()]

    def following(self, after: bytes, number: int, *, ready: bool) -> list[bytes]:
        """Return the entries after one, at most ``number``; fewer mean that no more are known."""
        orders = (self._ready,) if ready else (self._ready, self._held_up)
        merged = heapq.merge(*[order.after(after) for order in orders])
        end = min((order.end for order in orders if order.end is not None), default=None)
        return [entry for entry in islice(merged, number) if end is None or entry < end]

    def is_cut(self, *, ready: bool) -> bool:
        """Return whether there may be inboxes after the last one that is known."""
        orders = (self._ready,) if ready else (self._ready, self._held_up)
        return self._cursor is not None or any(order.end is not None for order in orders)

    def _hear(self, writes: WriteSet) -> None:
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self.drop()
            return
        for raw, stored in writes.items():
            if raw[:1] == keys.MAIL:
                self._put(raw, stored)

    def _put(self, raw: bytes, stored: bytes | None) -> None:
        mail = None if stored is None else _mail.decode(stored)
        order = None
        if mail is not None and mail.messages:
            order = self._held_up if is_held_up(mail) else self._ready
            order.put(raw, mail.oldest)
        for other in (self._ready, self._held_up):
            if other is not order:
                other.remove(raw)

    def released(self, transaction_id: bytes) -> None:
        """Drop it if it has not been used for a while: its holder is released."""
        if transaction_id == HOLDER:
            self.drop()

    def drop(self) -> None:
        """Forget the order. The next request that needs it builds it anew."""
        self._ready, self._held_up, self._cursor = _InboxOrder(), _InboxOrder(), b""
        self._followed.clear()
