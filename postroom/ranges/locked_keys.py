"""The keys that are locked, in order: to find those within a span.

Few transactions ask for spans, and all that lock would pay for the order. So new keys wait in a
list, and are sorted in when somebody asks. A key that is free again stays until half of the keys
are like that. Each key costs the same however many there are, but for the sorting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final

_LEFTOVERS_MIN: Final = 64


class LockedKeys:
    """See the module.

    Args:
        held: who has locked each token: a key that is not in it is free.
    """

    __slots__ = ("_held", "_new", "_sorted")

    def __init__(self, held: Mapping[Any, bytes]) -> None:
        self._held = held
        self._sorted: list[bytes] = []
        self._new: list[bytes] = []

    def add(self, key: bytes) -> None:
        """A key was locked."""
        self._new.append(key)

    def shrink(self) -> None:
        """Keys have become free: forget those that are, if they are too many."""
        if len(self._sorted) + len(self._new) > 2 * len(self._held) + _LEFTOVERS_MIN:
            self._sorted, self._new = [], [key for key in self._held if isinstance(key, bytes)]

    def within(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The locked keys with ``start <= key < end``, in order."""
        if self._new:
            self._sorted += self._new
            self._sorted.sort()  # mostly it is sorted already: what is new is merged in
            self._new = []
        keys, at = self._sorted, bisect_left(self._sorted, start)
        while at < len(keys) and (end is None or keys[at] < end):
            if keys[at] in self._held:
                yield keys[at]
            at += 1
