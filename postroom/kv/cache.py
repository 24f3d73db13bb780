"""A small cache of engine values, for what is read and written again and again.

A transaction reads a key and writes it a moment later; a counter or the index entry of a busy
inbox is read by every proposal. Asking the engine costs about a microsecond, and lets go of
Python's interpreter lock, at which threads that wait for it pile up. The cache answers from a
dictionary.

Exact, not approximate: whoever writes tells it (``wrote``), so what it has, absence included, is
what the engine holds. It belongs to the leaseholder's replica and is emptied when others may have
written. It keeps two generations: when the young one is full it becomes the old one, and what is
not asked for again goes with the next change. Both together have what the budget of memory allows
(:class:`.Budget`), and keep one entry for each 1 KiB of it.

Its :class:`Gaps` are where scans have found nothing but deleted keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

from postroom.kv import keys
from postroom.kv.engine import DEFAULT_BUDGET, Reader, WriteSet
from postroom.kv.gathering import Gathering

ENTRY_BYTES: Final = 1024
"""The largest value that is worth its room here: copying out of the engine dominates for others."""

_UNKNOWN: Final[Any] = object()


class Cache:
    """A reader in front of another one.

    Args:
        stored: the other one.
        bytes_max: of keys and values, in both generations together.

    Attributes:
        gaps: where scans have found nothing but deleted keys.
    """

    __slots__ = (
        "_bytes", "_bytes_max", "_entries_max", "_look_up", "_old", "_stored", "_young", "gaps",
    )  # fmt: skip

    def __init__(self, stored: Reader, bytes_max: int = DEFAULT_BUDGET.values_bytes) -> None:
        self._stored = stored
        self._look_up = stored.look_up if isinstance(stored, Gathering) else stored.get
        self.gaps = Gaps()
        self._young: WriteSet = {}
        self._old: WriteSet = {}
        self._bytes = 0
        self.resize(bytes_max)

    def resize(self, bytes_max: int) -> None:
        """Keep so many bytes of keys and values from now on, and begin anew."""
        self._bytes_max = bytes_max // 2
        self._entries_max = bytes_max // ENTRY_BYTES
        self.clear()

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of ``key``. Only the driver of the node calls it; others ``peek``."""
        young = self._young
        if key in young:
            return young[key]
        value = self._old.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._stored.get(key)
        self.offer(key, value)
        return value  # type: ignore[no-any-return]

    def look_up(self, key: bytes) -> bytes | None:
        """Return the value of a key that may well be new (:meth:`.Gathering.look_up`)."""
        young = self._young
        if key in young:
            return young[key]
        value = self._old.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._look_up(key)
        self.offer(key, value)
        return value  # type: ignore[no-any-return]

    def get_once(self, key: bytes) -> bytes | None:
        """Return the value of a key that will hardly be asked for again: it is not kept."""
        is_known, value = self.peek(key)
        return value if is_known else self._stored.get(key)

    def look_up_once(self, key: bytes) -> bytes | None:
        """Return the value of a key that may well be new, and will hardly be asked for again."""
        is_known, value = self.peek(key)
        return value if is_known else self._look_up(key)

    def peek(self, key: bytes) -> tuple[bool, bytes | None]:
        """Return whether the value of ``key`` is known here, and what it is. Changes nothing."""
        value = self._young.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._old.get(key, _UNKNOWN)
        return (False, None) if value is _UNKNOWN else (True, value)

    def iterate(
        self, lower: bytes, upper: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the pairs in a span; not cached."""
        return self._stored.iterate(lower, upper, reverse=reverse)

    def wrote(self, writes: WriteSet) -> None:
        """Note that the engine contains ``writes`` now."""
        if self.gaps.begins:
            self.gaps.wrote(writes)
        young, old, written = self._young, self._old, writes.keys()
        # Each looks up those of them that are fewer. This is done each turn.
        for key in written & young.keys():
            value = writes[key]
            size = 0 if value is None else len(value)
            if size <= ENTRY_BYTES:
                young[key] = value
                self._bytes += size
            else:
                # The old one first: who reads beside us must never find that behind this one.
                old.pop(key, None)
                del young[key]
        for key in written & old.keys():
            if key in young:
                continue
            value = writes[key]
            if value is None or len(value) <= ENTRY_BYTES:
                old[key] = value
            else:
                del old[key]
        if self._bytes > self._bytes_max:
            self._begin_generation()

    def clear(self) -> None:
        """Forget all, since anything may have changed."""
        if not (self._young or self._old or self.gaps.begins):
            return
        self.gaps.clear()
        self._young = {}
        self._old = {}
        self._bytes = 0

    def offer(self, key: bytes, value: bytes | None) -> None:
        """Note that the engine contains ``value`` at ``key``, as a reader has found out."""
        if value is not None and len(value) > ENTRY_BYTES:
            return
        self._young[key] = value
        self._bytes += len(key) + len(value or b"")
        if len(self._young) > self._entries_max or self._bytes > self._bytes_max:
            self._begin_generation()

    def _begin_generation(self) -> None:
        self._old = self._young
        self._young = {}
        self._bytes = 0


# --- gaps -----------------------------------------------------------------------------------------


GAPS_KEPT: Final = 128
GAP_KEYS_MIN: Final = 256
"""A shorter run of deleted keys is stepped over."""
LOOKS_EVERY: Final = 64
"""The number of deleted keys in a row after which a scan asks whether a gap is known."""

_TOMBSTONE: Final = 2
_STAMP: Final = slice(1, 9)
_END_OF_HEAD: Final = keys.END_OF_KEY + keys.HEAD


class Gaps:
    """The gaps: spans of many tombstones, one after the other, over which scans jump.

    A deletion is a version until it is collected (:mod:`.versions`). A scan steps over it, as it
    may have to find what was there before. Stepping over 400,000 of them takes most of a second,
    and each further scan would take as long. The leaseholder therefore remembers the gaps that
    scans have met::

        a  b  †  †  †  …  †  †  c            keys, † deleted
              └──── gap ─────┘  stamp: the newest deletion in it

    Invariant: from its stamp on no key in a gap has a value. Whatever is written there cuts the gap
    in two; further deletions, and what the collector removes, change nothing.

    Gaps are in memory only, and bounded in number: a gap that was forgotten is met again.

    Spans of engine keys, in order; none touches another one.

    Attributes:
        begins: the first key of each; only to look at.
    """

    __slots__ = ("_begins", "_ends", "_stamps", "begins")

    def __init__(self) -> None:
        self.begins = self._begins = list[bytes]()
        self._ends: list[bytes] = []
        self._stamps: list[bytes] = []

    def __len__(self) -> int:
        return len(self._begins)

    def clear(self) -> None:
        """Forget all of them."""
        self._replace(0, len(self), [])

    def beyond(self, bound: bytes, at: bytes, *, reverse: bool) -> bytes | None:
        """Return where a scan as of ``at`` goes on that has come to ``bound``; ``None``: there.

        ``bound`` belongs to what is still to be scanned, or backwards, is the end of that.
        """
        number = bisect_right(self._begins, bound) - 1
        if reverse and number >= 0 and self._begins[number] == bound:
            number -= 1
        if number < 0 or self._stamps[number] > at:
            return None
        end = self._ends[number]
        if reverse:
            return self._begins[number] if bound <= end else None
        return end if bound < end else None

    def add(self, begin: bytes, end: bytes, stamp: bytes) -> None:
        """Note that from ``stamp`` on no key in ``[begin, end)`` has a value."""
        first = bisect_right(self._begins, begin)
        if first and self._ends[first - 1] >= begin:
            first -= 1
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
            stamp = max(stamp, *self._stamps[first:last])
        self._replace(first, last, [(begin, end, stamp)])
        if len(self) > GAPS_KEPT:
            oldest = self._stamps.index(min(self._stamps))
            self._replace(oldest, oldest + 1, [])

    def wrote(self, writes: WriteSet) -> None:
        """Cut the gaps in which ``writes`` has values."""
        if not self._begins:
            return
        first, last = self._begins[0], self._ends[-1]
        for key, value in writes.items():
            if first <= key < last and value is not None and value[0] != _TOMBSTONE:
                self._cut(key)

    def _cut(self, key: bytes) -> None:
        number = bisect_right(self._begins, key) - 1
        if number < 0 or key >= self._ends[number] or not _is_head(key):
            return
        begin, end, stamp = self._begins[number], self._ends[number], self._stamps[number]
        halves = [(begin, key, stamp), (key + b"\x00", end, stamp)]
        if len(self) >= GAPS_KEPT:
            del halves[1]
        self._replace(number, number + 1, [half for half in halves if half[0] < half[1]])

    def _replace(self, first: int, last: int, gaps: list[tuple[bytes, bytes, bytes]]) -> None:
        self._begins[first:last] = [begin for begin, _, _ in gaps]
        self._ends[first:last] = [end for _, end, _ in gaps]
        self._stamps[first:last] = [stamp for _, _, stamp in gaps]


class GapCursor:
    """The cursor of a scan, which jumps over known gaps, and finds new ones.

    Args:
        gaps: the known ones; ``None``: there are none, and none are noted.
        at: as of when it reads, 8 bytes.
        lower, upper: what it scans, as engine keys.
        reverse: whether it goes backwards.

    Attributes:
        jump: where to go on, if a gap was met.
        is_open: whether the scan is in a run of deleted keys, or at its beginning.
    """

    __slots__ = (
        "_at",
        "_count",
        "_from",
        "_gaps",
        "_jumped",
        "_reverse",
        "_stamp",
        "is_open",
        "jump",
    )

    def __init__(
        self, gaps: Gaps | None, at: bytes, lower: bytes, upper: bytes, *, reverse: bool
    ) -> None:
        self._gaps = gaps
        self._at = at
        self._reverse = reverse
        self._from = upper if reverse else lower
        self._count, self._stamp, self._jumped = 0, b"", False
        self.is_open = gaps is not None
        self.jump: bytes | None = None
        if gaps:
            self._look(self._from)

    def taken(self) -> bytes | None:
        """Return where to go on; from there the scan goes."""
        bound, self.jump = self.jump, None
        return bound

    def deleted(self, head: bytes, latest: bytes) -> None:
        """Step over a key without a value as of ``at``, whose newest version is ``latest``."""
        stamp = latest[_STAMP]
        if self._gaps is None or latest[0] != _TOMBSTONE or stamp > self._at:
            self.ends(head)
            return
        if not self.is_open:
            self.is_open = True
            self._from = head + b"\x00" if self._reverse else head
        self._count += 1
        self._stamp = max(self._stamp, stamp)
        if not self._count % LOOKS_EVERY:
            self._look(head)

    def ends(self, bound: bytes) -> None:
        """End the run of deleted keys at ``bound``: at a value, or with the page."""
        if self.is_open and self._gaps is not None:
            if self._count >= GAP_KEYS_MIN or (self._jumped and self._count):
                begin, end = (bound + b"\x00", self._from) if self._reverse else (self._from, bound)
                self._gaps.add(begin, end, self._stamp)
            self._count, self._stamp, self._jumped = 0, b"", False
        self.is_open = False

    def _look(self, bound: bytes) -> None:
        assert self._gaps is not None
        self.jump = self._gaps.beyond(bound, self._at, reverse=self._reverse)
        self._jumped = self._jumped or self.jump is not None


def _is_head(key: bytes) -> bool:
    return key.endswith(_END_OF_HEAD) and key.index(keys.END_OF_KEY, 1) + 3 == len(key)


NO_CURSOR: Final = GapCursor(None, b"", b"", b"", reverse=False)
