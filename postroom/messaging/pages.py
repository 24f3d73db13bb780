"""Pages: as much of what is stored as one answer may take."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


def fill(
    entries: Iterable[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The first (id, stored) up to a number and a size (but one at least), and whether there is
    more. Of what is beyond, one entry at most is ever read.
    """
    found, beyond = fill_up_to(entries, entries_max, bytes_max)
    return found, beyond is not None


def fill_up_to(
    entries: Iterable[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, bytes] | None]:
    """The same, and the first entry that is beyond; ``None``: there is none."""
    left = iter(entries)
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in islice(left, max(entries_max, 0)):
        size += len(entry[1])
        if size > bytes_max and found:
            return found, entry
        found.append(entry)
    return found, next(left, None)
