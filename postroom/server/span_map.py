"""The span map of a node: which of its ranges owns a key.

::

    starts      b""          f                  m
                │── range 1 ─│── range 3 ──│    │── range 2 ─────────▶
                                           k    (another node has the keys from k to m)

Each key belongs to one owner at most. A key is found among the starts by bisection. The map is one
tuple, which a change replaces at once. Any thread may look while another one changes it, and sees
the map before the change or after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from postroom.ranges.contract import KeySet

Owner = TypeVar("Owner")

Span: TypeAlias = tuple[bytes, bytes | None]
"""The keys from a first one up to, but without, an end; ``None``: there is no end."""


def overlap(one: Span, other: Span) -> bool:
    """Return whether two spans have a key in common."""
    start = max(one[0], other[0])
    return all(end is None or start < end for _, end in (one, other))


class _Map(NamedTuple, Generic[Owner]):
    """A map: spans in order, by their parts."""

    starts: tuple[bytes, ...] = ()
    ends: tuple[bytes | None, ...] = ()
    owners: tuple[Owner, ...] = ()


class SpanMap(Generic[Owner]):
    """A map of spans of keys to their owners; see the module.

    Attributes:
        version: the number of its changes.
        are_several: whether no owner has all keys.
    """

    def __init__(self) -> None:
        self.version = 0
        self.are_several = True
        self._map: _Map[Owner] = _Map()

    def __len__(self) -> int:
        return len(self._map.owners)

    @property
    def is_whole(self) -> bool:
        """Return whether each key has an owner."""
        starts, ends, _ = self._map
        return bool(starts) and not starts[0] and ends == (*starts[1:], None)

    def owner(self, key: bytes) -> Owner | None:
        """Return the owner of a key; ``None``: there is none here."""
        starts, ends, owners = self._map
        index = bisect_right(starts, key) - 1
        if index < 0:
            return None
        end = ends[index]
        return owners[index] if end is None or key < end else None

    def gap(self, key: bytes) -> Span:
        """Return the longest span without an owner around a key that has none."""
        starts, ends, _ = self._map
        index = bisect_right(starts, key)
        before = ends[index - 1] if index else None
        return before or b"", starts[index] if index < len(starts) else None

    def owners(self, start: bytes, end: bytes | None) -> tuple[Owner, ...]:
        """Return the owners of a part of a span, in the order of their keys."""
        starts, ends, owners = self._map
        if end is not None and end <= start:
            return ()
        first = max(bisect_right(starts, start) - 1, 0)
        until = len(starts) if end is None else bisect_left(starts, end)
        if first < until:
            first_end = ends[first]
            first += first_end is not None and first_end <= start
        return owners[first:until]

    def owner_of_all(self, keys: KeySet) -> Owner | None:
        """Return the owner of all keys and spans; ``None``: they have several, or none.

        An empty span belongs to the owner of its start.
        """
        every = [*keys.keys, *(start for start, _ in keys.spans)]
        found = self.owner(every[0]) if every else None
        if found is None or any(self.owner(key) is not found for key in every[1:]):
            return None
        return found if all(self._reaches(start, end) for start, end in keys.spans) else None

    def _reaches(self, start: bytes, end: bytes | None) -> bool:
        """Return whether the owner of ``start`` owns the keys from there to ``end``."""
        starts, ends, _ = self._map
        own_end = ends[bisect_right(starts, start) - 1]
        return own_end is None or (end is not None and end <= own_end)

    def replace(self, spans: Mapping[Owner, Span | None]) -> None:
        """Give owners other spans, all at once; ``None`` takes an owner's span away.

        Raises:
            ValueError: a span has no keys, or two owners would own a key. The map is as it was.
        """
        starts, ends = list(self._map.starts), list(self._map.ends)
        owners = list(self._map.owners)
        for owner in spans:
            if owner in owners:
                index = owners.index(owner)
                del starts[index], ends[index], owners[index]
        for owner, span in spans.items():
            if span is not None:
                index = self._index_for(starts, ends, *span)
                starts.insert(index, span[0])
                ends.insert(index, span[1])
                owners.insert(index, owner)
        self._map = _Map(tuple(starts), tuple(ends), tuple(owners))
        self.are_several = len(owners) != 1 or not self.is_whole
        self.version += 1

    @staticmethod
    def _index_for(
        starts: list[bytes], ends: list[bytes | None], start: bytes, end: bytes | None
    ) -> int:
        """Return the index of a span that joins others.

        Raises:
            ValueError: it has no keys, or one of theirs.
        """
        if end is not None and end <= start:
            raise ValueError(f"there are no keys from {start!r} to {end!r}")
        index = bisect_left(starts, start)
        before, following = ends[index - 1 : index], starts[index : index + 1]
        if before and (before[0] is None or start < before[0]):
            raise ValueError(f"two ranges would own {start!r}")
        if following and (end is None or following[0] < end):
            raise ValueError(f"two ranges would own {following[0]!r}")
        return index
