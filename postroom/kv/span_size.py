"""Estimates of the bytes that a span of keys takes: in memory, and in a table file."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate, islice
from typing import Any, Final

from postroom.kv.engine import WriteSet

SAMPLE_BYTES: Final = 16 * 1024
SAMPLES_KEPT: Final = 2048


class MemtableSample:
    """A sample of the newest writes, which tells where the bytes lie that no table has yet.

    An engine knows how large its tables are, key by key. It knows only the size of its memtable and
    of its log. The keys of the last writes are therefore sampled here, each for some bytes. The
    newest samples that make up the memtable tell how it is spread.

    The size of the sample is bounded. A sample is off by some kilobytes, and while a table is being
    made of what was in memory that is counted nowhere for a moment.

    One thread at a time tells what is written; any thread asks.
    """

    def __init__(self) -> None:
        """Begin with nothing: what an engine finds when it is opened it makes tables of."""
        self._samples: deque[tuple[bytes, int]] = deque(maxlen=SAMPLES_KEPT)
        self._left = 0  # bytes that no sample stands for yet
        self._asked: tuple[Any, tuple[list[bytes], list[int]]] = None, ([], [0])

    def wrote(self, writes: WriteSet) -> None:
        """Sample a batch that the engine is given."""
        size = self._left + sum(map(len, writes)) + sum(map(len, filter(None, writes.values())))
        if size < SAMPLE_BYTES:
            self._left = size
            return
        step = max(1, len(writes) * SAMPLE_BYTES // size)
        picked = islice(writes.items(), step // 2, None, step)
        sampled = [(key, len(key) + len(value or b"")) for key, value in picked]
        total = sum(own for _, own in sampled)
        self._samples.extend((key, own * size // total) for key, own in sampled)
        self._left = 0

    def bytes_in(self, lower: bytes, upper: bytes, size: int) -> int:
        """Return about how many bytes of ``[lower, upper)`` are in no table.

        All keys together have ``size`` bytes in no table.
        """
        if size <= 0 or lower >= upper or not self._samples:
            return 0
        keys, before = self._newest(size)
        return before[bisect_left(keys, upper)] - before[bisect_left(keys, lower)]

    def _newest(self, size: int) -> tuple[list[bytes], list[int]]:
        """Return the keys of the newest samples, in order, and how many bytes lie before each."""
        samples, newest = list(self._samples), []
        asked = (len(samples), samples[-1], size)
        if asked == self._asked[0]:
            return self._asked[1]
        for key, stands_for in reversed(samples):
            if size <= 0:
                break
            newest.append((key, min(stands_for, size)))
            size -= stands_for
        newest.sort()
        found = [key for key, _ in newest], [0, *accumulate(each for _, each in newest)]
        self._asked = asked, found
        return found


_DIGITS: Final = 8
"""Bytes of a key that are looked at, behind what the file's keys have in common."""


def covered(span: tuple[bytes, bytes], first: bytes, last: bytes) -> float:
    """Return about which part of a table file from ``first`` to ``last`` lies within ``span``.

    Keys are taken for fractions, and spread evenly: a guess, but of two files a level at most.
    """
    if span[0] <= first and last < span[1]:
        return 1.0
    if last < span[0] or span[1] <= first:
        return 0.0
    shared = _shared(first, last)
    begin, end = _fraction(first, shared), _fraction(last, shared)
    if begin == end:
        return 1.0
    lower = begin if span[0] <= first else _fraction(span[0], shared)
    upper = end if last < span[1] else _fraction(span[1], shared)
    return (upper - lower) / (end - begin)


def _fraction(key: bytes, skip: int) -> float:
    """Return ``key`` as a number from 0 to 1, its first ``skip`` bytes left out."""
    return int.from_bytes(key[skip : skip + _DIGITS].ljust(_DIGITS, b"\x00")) / (1 << 8 * _DIGITS)


def _shared(first: bytes, last: bytes) -> int:
    """Return how many bytes two keys begin with alike."""
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return at
    return min(len(first), len(last))
