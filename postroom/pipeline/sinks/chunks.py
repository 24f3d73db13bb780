"""Chunks of writes, of a size that staging takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from postroom.client.staging import packed
from postroom.limits import STAGED_CHUNK_BYTES_MAX

CHUNK_BYTES: Final = 256 * 1024
"""The size of a chunk, about."""


class RowChunks:
    """Chunks of rows, in their order."""

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._bytes = 0

    def add(self, rows: list[Any], size: int) -> Iterator[bytes]:
        """Add rows of about ``size`` bytes together; yield the chunks that are full."""
        if not rows:
            return
        each = max(size // len(rows), 1)
        first = 0
        while first < len(rows):
            room = max((CHUNK_BYTES - self._bytes) // each, 1)
            taken = rows[first : first + room]
            first += len(taken)
            self._rows += taken
            self._bytes += each * len(taken)
            if self._bytes + each > CHUNK_BYTES:
                yield from self.rest()

    def rest(self) -> Iterator[bytes]:
        """Yield the rows that are in no chunk yet."""
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            yield from _cut(rows)


def _cut(rows: list[Any]) -> Iterator[bytes]:
    """Cut rows in halves until each chunk is small enough: their sizes were estimates."""
    chunk = packed(rows)
    if len(chunk) <= STAGED_CHUNK_BYTES_MAX or len(rows) == 1:
        yield chunk
        return
    half = len(rows) // 2
    yield from _cut(rows[:half])
    yield from _cut(rows[half:])
