"""The merging of backups: entries of several files in the order of names, the newest of each.

Each file is a stream of entries whose names rise. Entries are taken from all streams up to a name
that all of them have reached, so no more than a block of each is in memory::

    full backup     a b c d │ e f g
    increment           c   │   f
    increment         b     │ e     h
                            └ the least of the last names
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from postroom.backup.blocks import Entries


class EntryStream:
    """The entries of one file, of which the first ones are taken.

    Args:
        blocks: its entries, in pieces.
    """

    def __init__(self, blocks: Iterator[Entries]) -> None:
        self._blocks = blocks
        self._names: Sequence[bytes] = ()
        self._stored: Sequence[bytes | None] = ()
        self._taken = 0

    def fill(self) -> bool:
        """Read the next piece if none is left of this one; return whether there is more."""
        while self._taken == len(self._names):
            piece = next(self._blocks, None)
            if piece is None:
                return False
            self.put(piece)
        return True

    def put(self, piece: Entries) -> None:
        """Add a piece, when the ones before it are taken."""
        (self._names, self._stored), self._taken = piece, 0

    @property
    def last(self) -> bytes:
        """Return the last name of the piece."""
        return self._names[-1]

    def take(self, until: bytes) -> dict[bytes, bytes | None]:
        """Take the entries of the piece whose names are not after ``until``."""
        first, self._taken = self._taken, bisect_right(self._names, until, self._taken)
        names, stored = self._names[first : self._taken], self._stored[first : self._taken]
        return dict(zip(names, stored, strict=True))


def merged(files: Sequence[Iterator[Entries]]) -> Iterator[Entries]:
    """Iterate over the entries that are left of files, the oldest file first, in pieces."""
    streams = [EntryStream(blocks) for blocks in files]
    while live := [stream for stream in streams if stream.fill()]:
        until = min(stream.last for stream in live)
        found: dict[bytes, bytes | None] = {}
        for stream in live:
            found |= stream.take(until)
        names = [name for name in sorted(found) if found[name] is not None]
        if names:
            yield names, [found[name] for name in names]


class Differences:
    """The differences between the entries of earlier backups and those of now, which come in order.

    Args:
        before: the entries of earlier backups.
    """

    def __init__(self, before: Iterator[Entries]) -> None:
        self._before = EntryStream(before)

    def of(self, now: Entries) -> Iterator[Entries]:
        """Iterate over the differences up to the last entry of a piece of now."""
        after = EntryStream(iter((now,)))
        while after.fill():
            until = after.last
            if self._before.fill():
                until = min(until, self._before.last)
            yield _difference(self._before.take(until), after.take(until))

    def rest(self) -> Iterator[Entries]:
        """Iterate over the entries that are gone after the last piece."""
        while self._before.fill():
            yield _difference(self._before.take(self._before.last), {})


def _difference(before: dict[bytes, bytes | None], after: dict[bytes, bytes | None]) -> Entries:
    if before == after:
        return (), ()
    changed = {name: stored for name, stored in after.items() if before.get(name) != stored}
    changed |= dict.fromkeys(before.keys() - after.keys())
    names = sorted(changed)
    return names, [changed[name] for name in names]
