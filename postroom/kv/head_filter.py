"""A filter of the heads in memory: most keys that were never written are known not to be there.

Each put asks whether its key has a head. For a new key in a large store that costs more than all
the rest of the put, since the engine looks into memtables and tables of several levels. The filter
answers for most new keys in one or two steps. It is a Bloom filter with blocks of a byte (Putze,
Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007)::

    key ─▶ hash ─┬─▶ a byte of each part
                 └─▶ two of its bits: not both of them are set ─▶ no such head

The first part is small. Before it has a head for every second byte, a large one takes further
heads. When that has two heads for each byte, the filter tells too little, and is given up.

Invariant: all heads of the engine were added, so an absence is never wrong. The filter is therefore
made for an engine without any, and hears of every batch before it is written. Deleted heads stay.

Only evaluation asks it (:meth:`.Gathering.look_up`): most reads of clients are of keys that are
there, and would pay for the question.

Left out: a store that has heads when it is opened. It has no filter, as reading all heads takes
too long.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Final

from postroom.kv import keys
from postroom.kv.engine import Reader

SMALL_SHARE: Final = 16
HEADS_A_BYTE: Final = 2
LONGEST_SKIP: Final = 63
"""The most keys that are skipped for one that is looked for: most puts may be of known keys."""

_LAST_BYTE: Final = keys.HEAD[0]
"""The last byte of a head. Few other keys end so; those are added, too."""
_PATTERN_BITS: Final = 5
_PAIRS: Final = [1 << one | 1 << other for one, other in combinations(range(8), 2)]
_PATTERNS: Final = bytes(_PAIRS[number % len(_PAIRS)] for number in range(1 << _PATTERN_BITS))
_PATTERN_MASK: Final = len(_PATTERNS) - 1


class HeadFilter:
    """A filter of the heads that may exist. One thread at a time adds, and one asks.

    Args:
        bytes_max: the size of both parts together.
    """

    __slots__ = ("_large", "_large_bytes", "_room", "_skips", "_small", "_to_skip")

    def __init__(self, bytes_max: int) -> None:
        small_bytes = bytes_max // SMALL_SHARE
        self._large_bytes = bytes_max - small_bytes
        self._small = bytearray(small_bytes)
        self._large = bytearray(1)
        self._room = small_bytes // 2
        self._skips = self._to_skip = 0

    def lacks(self, key: bytes) -> bool:
        """Return whether ``key`` is a head that is not there; if not, it may be there.

        To be called by one thread at a time.
        """
        if key[-1] != _LAST_BYTE:
            return False
        if self._to_skip:
            self._to_skip -= 1
            return False
        hashed, small, large = hash(key), self._small, self._large
        pattern, index = _PATTERNS[hashed & _PATTERN_MASK], hashed >> _PATTERN_BITS
        if (
            large[index % len(large)] & pattern == pattern
            or small[index % len(small)] & pattern == pattern
        ):
            self._skips = self._to_skip = min(2 * self._skips + 1, LONGEST_SKIP)
            return False
        self._skips = 0
        return True

    def add(self, written: Collection[bytes]) -> bool:
        """Add the heads among some engine keys; return whether the filter is still of use."""
        if len(self._large) == 1 and len(written) >= self._room:
            self._room = HEADS_A_BYTE * self._large_bytes
            self._large = bytearray(self._large_bytes)
        part = self._small if len(self._large) == 1 else self._large
        size, room = len(part), self._room
        for key in written:
            if key[-1] == _LAST_BYTE:
                hashed = hash(key)
                pattern, index = _PATTERNS[hashed & _PATTERN_MASK], (hashed >> _PATTERN_BITS) % size
                before = part[index]
                if before & pattern != pattern:
                    part[index] = before | pattern
                    room -= 1
        self._room = room
        return room > 0


def has_data(reader: Reader) -> bool:
    """Return whether an engine may have heads."""
    return next(reader.iterate(keys.DATA, keys.DATA_END), None) is not None
