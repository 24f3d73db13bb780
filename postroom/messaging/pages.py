"""Pages of stored entries, limited by number and size, as one answer may take."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice


def fill(
    entries: Iterable[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Return the first entries up to a number and a size, and whether there are more.

    At least one entry is returned, and at most one beyond the page is read.
    """
    found, beyond = fill_up_to(entries, entries_max, bytes_max)
    return found, beyond is not None


def fill_up_to(
    entries: Iterable[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], tuple[bytes, bytes] | None]:
    """Return the first entries up to a number and a size, and the first one beyond, or `None`."""
    left = iter(entries)
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in islice(left, max(entries_max, 0)):
        size += len(entry[1])
        if size > bytes_max and found:
            return found, entry
        found.append(entry)
    return found, next(left, None)
