"""A small cache of engine values, for what is read and written again and again.

A transaction reads a key and writes it a moment later; a counter or the index entry of a busy
inbox is read by every proposal. Asking the engine costs about a microsecond, and lets go of
Python's interpreter lock, at which threads that wait for it pile up. The cache answers from a
dictionary.

Exact, not approximate: whoever writes tells it (``wrote``), so what it holds, absence included, is
what the engine holds. It belongs to the leaseholder's replica and is emptied when others may have
written. It keeps two generations: when the young one is full it becomes the old one, and what is
not asked for again goes with the next change. Both together hold what the budget of memory allows
(:mod:`.budget`), and keep one entry for each 1 KiB of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from postroom.kv.budget import DEFAULT
from postroom.kv.engine import Reader, WriteSet
from postroom.kv.gaps import Gaps
from postroom.kv.gathering import Gathering

ENTRY_BYTES: Final = 1024
"""Larger values are not worth their room here: copying them out of the engine dominates."""

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

    def __init__(self, stored: Reader, bytes_max: int = DEFAULT.values_bytes) -> None:
        self._stored = stored
        self._look_up = stored.look_up if isinstance(stored, Gathering) else stored.get
        self.gaps = Gaps()
        self._bytes_max = bytes_max // 2
        self._entries_max = bytes_max // ENTRY_BYTES
        self._young: WriteSet = {}
        self._old: WriteSet = {}
        self._bytes = 0

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
        """Note that the engine holds ``writes`` now."""
        if self.gaps.begins:
            self.gaps.wrote(writes)
        young, old = self._young, self._old
        # Each of them is looked up, none of the thousands that are here: this is done each turn.
        items: Iterable[tuple[bytes, bytes | None]]
        if len(writes) < self._entries_max:
            items = writes.items()
        else:  # only those of them that are here, which are fewer
            written = writes.keys()
            items = [(key, writes[key]) for key in written & young.keys() | written & old.keys()]
        for key, value in items:
            if key in young:
                if value is None or len(value) <= ENTRY_BYTES:
                    young[key] = value
                    self._bytes += len(value or b"")
                    continue
                # The old one first: who reads beside us must never find that behind this one.
                old.pop(key, None)
                del young[key]
            elif key in old:
                if value is None or len(value) <= ENTRY_BYTES:
                    old[key] = value
                else:
                    del old[key]
        if self._bytes > self._bytes_max:
            self._begin_generation()

    def clear(self) -> None:
        """Anything may have changed."""
        self.gaps.clear()
        self._young = {}
        self._old = {}
        self._bytes = 0

    def offer(self, key: bytes, value: bytes | None) -> None:
        """Note that the engine holds ``value`` at ``key``, as a reader has found out."""
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
