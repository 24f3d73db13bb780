"""A sample of the newest writes, which tells where the bytes lie that no table has yet.

An engine knows how large its tables are, key by key. It knows only the size
of its memtable and of its log. The keys of the last writes are therefore sampled here, each for
some bytes. The newest samples that make up the memtable tell how it is spread.

The size of the sample is bounded. A sample is off by some kilobytes, and while a
table is being made of what was in memory that is counted nowhere for a moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import accumulate, islice
from typing import Any, Final

from postroom.kv.engine import WriteSet

SAMPLE_BYTES: Final = 16 * 1024
SAMPLES_KEPT: Final = 2048


class MemtableSample:
    """See the module. One thread at a time tells what is written; any thread asks."""

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
        sampled = list(islice(writes, step // 2, None, step))
        self._samples.extend((key, size // len(sampled)) for key in sampled)
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


__all__ = ["SAMPLES_KEPT", "SAMPLE_BYTES", "MemtableSample"]
