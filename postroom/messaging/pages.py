"""Pages: as much of what is stored as one answer may take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LIST_MAX: Final = 8192
"""So many entries fit into one answer, whatever is asked for: the turn is not longer than that."""


def fill(
    entries: Iterable[tuple[bytes, bytes]], entries_max: int, bytes_max: int
) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The first (id, stored) up to a number and a size (but one at least), and whether there is
    more. Of what is beyond, one entry at most is ever read.
    """
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for entry in entries:
        size += len(entry[1])
        if len(found) >= entries_max or (size > bytes_max and found):
            return found, True
        found.append(entry)
    return found, False
