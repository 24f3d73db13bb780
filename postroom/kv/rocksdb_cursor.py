"""Iterating over RocksDB: a cursor that can be taken away, read in pages.

rocksdict keeps a database open for as long as one of its iterators is there, and a generator keeps
what it has in hand until somebody finishes it. Therefore only a cursor holds an iterator, and the
engine closes its cursors before it closes the database. A cursor has no place: each page says where
it begins, so several readers can use the same one by turns::

    iterate ─▶ page of 4 ─▶ page of 16 ─▶ … ─▶ page of 256 pairs, or 64 KiB

Most readers look at few pairs, so the first page is small; each page costs one seek.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import rocksdict

from postroom.kv.folder import reason, unreadable

FIRST_PAGE_PAIRS: Final = 4
PAGE_PAIRS: Final = 256
PAGE_BYTES: Final = 64 * 1024
"""Pairs read ahead of whoever iterates: few at first, as most look at few."""

_Pairs: TypeAlias = list[tuple[bytes, bytes]]


def is_rocksdb(error: Exception) -> bool:
    """Return whether RocksDB says so. rocksdict has no class of its own for that."""
    return type(error) is Exception


class Cursor:
    """The database as it was when this was made. It holds an iterator, until it is closed.

    Several may read pages by turns, also from different threads.
    """

    def __init__(self, iterator: rocksdict.RdictIter, folder: Path, what: str) -> None:
        self._iterator: rocksdict.RdictIter | None = iterator
        self._folder = folder
        self._what = what
        self._one_at_a_time = threading.Lock()

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._iterator = None

    def page(self, lower: bytes, upper: bytes, pairs_max: int, *, reverse: bool) -> _Pairs:
        """Return the first pairs of a span, or the last ones, backwards; none: no more."""
        with self._one_at_a_time:
            pairs, wrong = self._read(lower, upper, pairs_max, reverse=reverse)
        if wrong:
            raise unreadable(self._folder, wrong)
        return pairs

    def _read(
        self, lower: bytes, upper: bytes, pairs_max: int, *, reverse: bool
    ) -> tuple[_Pairs, str]:
        """Return a page, and what RocksDB says is wrong, if anything is.

        The error is not raised from here. Its traceback would hold the iterator as long as anybody
        holds the error, and an iterator keeps the database open, and its folder locked.
        """
        iterator = self._iterator
        if iterator is None:
            raise RuntimeError(f"The {self._what} is closed.")
        read = _page_backward if reverse else _page_forward
        try:
            pairs = read(iterator, lower, upper, pairs_max)
            if not pairs:  # it may have stopped for an error
                iterator.status()
        except Exception as error:
            if not is_rocksdb(error):
                raise
            return [], reason(error)
        return pairs, ""

    def pairs(self, lower: bytes, upper: bytes, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all pairs of ``[lower, upper)``, page by page."""
        pairs_max = FIRST_PAGE_PAIRS
        while page := self.page(lower, upper, pairs_max, reverse=reverse):
            for pair in page:
                yield pair
                if self._iterator is None:
                    raise RuntimeError(f"The {self._what} is closed.")
            if reverse:
                upper = page[-1][0]
            else:
                lower = page[-1][0] + b"\x00"
            pairs_max = min(4 * pairs_max, PAGE_PAIRS)


def _page_forward(
    iterator: rocksdict.RdictIter, lower: bytes, upper: bytes, pairs_max: int
) -> _Pairs:
    iterator.seek(lower)
    return _page(iterator, iterator.next, lambda key: key < upper, pairs_max)


def _page_backward(
    iterator: rocksdict.RdictIter, lower: bytes, upper: bytes, pairs_max: int
) -> _Pairs:
    iterator.seek_for_prev(upper)
    if iterator.key() == upper:
        iterator.prev()
    return _page(iterator, iterator.prev, lambda key: key >= lower, pairs_max)


def _page(
    iterator: rocksdict.RdictIter,
    advance: Callable[[], None],
    is_within: Callable[[bytes], bool],
    pairs_max: int,
) -> _Pairs:
    pairs: _Pairs = []
    size = 0
    while len(pairs) < pairs_max and size < PAGE_BYTES:
        key = iterator.key()
        if key is None or not is_within(key):
            break
        value = iterator.value()
        pairs.append((key, value))
        size += len(value)
        advance()
    return pairs
