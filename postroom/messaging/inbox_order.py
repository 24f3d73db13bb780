"""The inboxes with the oldest messages first: an order in the leaseholder's memory.

The index of inboxes is stored by key. This order is built from it, over several turns, when a
request needs the inboxes that have waited longest. From then on it follows the index entries that
commits write. Nothing of it is stored::

    index of inboxes ── read once ──▶ ┌ ready     (oldest message, key), ...  ┐
    commits ── their index entries ─▶ └ held up   (oldest message, key), ...  ┘ ──▶ the first ones

Each of the two parts keeps the first ``INBOXES_ORDERED_MAX`` inboxes, with
``INBOXES_ORDERED_BYTES_MAX`` of keys. If there are more, it is *cut*: it knows all inboxes before
its ``end``, and none after that. When half of such a part is gone, the index is read again; the
tens of thousands of messages that were taken meanwhile outweigh that cost.

Invariant: once it is built, a part holds exactly the inboxes before its end, as they are applied.

It is held as a transaction holds its locks. It is dropped when it was not used for a minute, or
with the lease. A commit that writes more than a turn has room for drops it, too.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Final

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.messaging.requests import MESSAGE_ID_BYTES, InboxIndexEntry
from postroom.ranges.evaluation import View
from postroom.ranges.memory import Holders
from postroom.ranges.ports import Registry

UNUSED_SECONDS: Final = 60.0
HOLDER: Final = bytes(16)
"""The holder of the order in memory, which goes when it is not used for a while."""
_CHUNK: Final = 512
_mail = msgspec.msgpack.Decoder(InboxIndexEntry)


def is_held_up(mail: InboxIndexEntry) -> bool:
    """Return whether a postponed message holds up all messages of an inbox."""
    return bool(mail.held) and mail.oldest > mail.held


class _Part:
    """The inboxes of a part in order, in chunks.

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
    """The order of the inboxes of one range.

    Args:
        holders: the holders of things in memory, which end this one if it is not used.
    """

    def __init__(self, holders: Holders) -> None:
        self._holders = holders
        self._ready, self._held_up = _Part(), _Part()
        self._cursor: bytes | None = b""
        self._followed: list[Callable[[WriteSet], None]] = []

    def register(self, registry: Registry) -> None:
        """Follow what is written while it is built, and register its size."""
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
            for raw, stored in view.iterate(*keys.mail_span(self._cursor, None)):
                view.steps += 1
                self._put(raw, stored)
                if view.is_used_up():
                    break
            else:
                self._cursor = None
                return
            self._cursor = keys.user_key(raw) + b"\x00"
            yield

    def following(self, after: bytes, number: int, *, ready: bool) -> list[bytes]:
        """Return the entries after one, at most ``number``; fewer mean that no more are known."""
        parts = (self._ready,) if ready else (self._ready, self._held_up)
        merged = heapq.merge(*[part.after(after) for part in parts])
        end = min((part.end for part in parts if part.end is not None), default=None)
        return [entry for entry in islice(merged, number) if end is None or entry < end]

    def is_cut(self, *, ready: bool) -> bool:
        """Return whether there may be inboxes after the last one that is known."""
        parts = (self._ready,) if ready else (self._ready, self._held_up)
        return self._cursor is not None or any(part.end is not None for part in parts)

    def _hear(self, writes: WriteSet) -> None:
        if len(writes) > limits.COMPLETED_AT_ONCE_MAX:
            self.drop()
            return
        for raw, stored in writes.items():
            if raw[:1] == keys.MAIL:
                self._put(raw, stored)

    def _put(self, raw: bytes, stored: bytes | None) -> None:
        mail = None if stored is None else _mail.decode(stored)
        part = None
        if mail is not None and mail.messages:
            part = self._held_up if is_held_up(mail) else self._ready
            part.put(raw, mail.oldest)
        for other in (self._ready, self._held_up):
            if other is not part:
                other.remove(raw)

    def released(self, transaction_id: bytes) -> None:
        """Drop it if it has not been used for a while: its holder is released."""
        if transaction_id == HOLDER:
            self.drop()

    def drop(self) -> None:
        """Forget the order. The next request that needs it builds it anew."""
        self._ready, self._held_up, self._cursor = _Part(), _Part(), b""
        self._followed.clear()
