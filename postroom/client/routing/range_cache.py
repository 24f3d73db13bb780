"""The range cache of a client: the descriptors of ranges that nodes have told, by their spans.

::

    keys    b"" ─────── f ─────── m ─────── end
    known       range 1 │ (gap)   │ range 2

It is an index and may be wrong: each range is the authority about itself. If two descriptors have a
key in common, the one with the higher generation is right. It replaces all that it overlaps.
Otherwise the known ones stay. A key that no known range contains lies in a *gap*; nodes
have to be asked for it.

A node that is mistaken, or lies, must not keep a client busy:

* A node tells of ranges that it leads, and of others. A range that a node leads takes the place of
  those that no leader has confirmed, whatever their generations.
* A client with other rights is told of other bounds. If a range that a node leads has them in the
  same generation, all that was told before is forgotten.
* A descriptor is *refuted* if a node that was asked for the range refuses, and tells neither this
  descriptor nor a later one. It is forgotten, and is learned again only from a node that leads the
  range.
* A node that has told several refuted descriptors is not listened to for a few times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from postroom.limits import (
    CACHED_RANGES_MAX,
    KEY_BYTES_MAX,
    NODE_MISTAKES_MAX,
    REFUTED_RANGES_MAX,
)
from postroom.ranges.contract import KeySet
from postroom.ranges.descriptor import RangeDescriptor


class Piece(NamedTuple):
    """A piece of a span: all of it lies in one range, or in a gap (``None``)."""

    start: bytes
    end: bytes | None
    descriptor: RangeDescriptor | None


class RangeCache:
    """The known ranges of a store; see the module.

    Attributes:
        mistakes: the number of refuted descriptors of each node that has told any, less the times
            that it was not listened to.
    """

    def __init__(self) -> None:
        self.mistakes: Counter[int] = Counter()
        self._starts: list[bytes] = []
        self._by_start: dict[bytes, RangeDescriptor] = {}
        self._by_id: dict[int, RangeDescriptor] = {}
        self._tellers: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._refuted: dict[tuple[int, int], None] = {}

    def __iter__(self) -> Iterator[RangeDescriptor]:
        """Return the known descriptors, in the order of their keys."""
        return (self._by_start[start] for start in self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def by_id(self, range_id: int) -> RangeDescriptor | None:
        """Return the descriptor of a range; ``None``: it is not known."""
        return self._by_id.get(range_id)

    # --- news

    def learn(
        self, descriptors: Iterable[RangeDescriptor], teller: int, *, leads: bool = False
    ) -> bool:
        """Take descriptors that a node has told.

        Args:
            descriptors: the ranges.
            teller: the node.
            leads: whether it leads these ranges itself.

        Returns:
            Whether anything has changed.
        """
        told = list(descriptors)
        if told and self.mistakes[teller] >= NODE_MISTAKES_MAX:
            self.mistakes[teller] -= 1
            return False
        changes = [self._learn(each, teller, leads=leads) for each in told]
        return any(changes)

    def _learn(self, told: RangeDescriptor, teller: int, *, leads: bool) -> bool:
        if not _is_sound(told):
            return False
        if not leads and (told.range_id, told.generation) in self._refuted:
            return False
        before = self._by_id.get(told.range_id)
        if before == told:
            self._confirmed |= {told.range_id} if leads else set()
            return False
        if leads and before is not None and before.generation == told.generation:
            self.clear()
            before = None
        replaced = set(self.overlapping(told.start, told.end)) | ({before} if before else set())
        for each in replaced:
            may_be_wrong = leads and each.range_id not in self._confirmed
            if told.generation <= each.generation and not may_be_wrong:
                return False
        for each in replaced:
            self._remove(each)
        if len(self) >= CACHED_RANGES_MAX:
            self.clear()
        insort(self._starts, told.start)
        self._by_start[told.start] = self._by_id[told.range_id] = told
        self._tellers[told.range_id] = teller
        self._confirmed |= {told.range_id} if leads else set()
        return True

    def refute(self, range_id: int, generation: int) -> bool:
        """Forget a descriptor that has turned out wrong; return whether it was known."""
        known = self._by_id.get(range_id)
        if known is None or known.generation != generation:
            return False
        self.mistakes[self._tellers[range_id]] += 1
        self._remove(known)
        while len(self._refuted) >= REFUTED_RANGES_MAX:
            del self._refuted[next(iter(self._refuted))]
        self._refuted[range_id, generation] = None
        return True

    def confirm(self, range_id: int) -> None:
        """Note that the range has answered: the node that has told of it may be believed."""
        self.mistakes.pop(self._tellers.get(range_id, 0), None)

    def clear(self) -> None:
        """Forget all ranges."""
        for kept in (self._starts, self._by_start, self._by_id, self._tellers, self._confirmed):
            kept.clear()

    def _remove(self, known: RangeDescriptor) -> None:
        del self._starts[bisect_right(self._starts, known.start) - 1]
        del self._by_start[known.start], self._by_id[known.range_id]
        del self._tellers[known.range_id]
        self._confirmed.discard(known.range_id)

    # --- questions

    def owner(self, key: bytes) -> RangeDescriptor | None:
        """Return the range that contains a key; ``None``: the key lies in a gap."""
        at = bisect_right(self._starts, key)
        if not at:
            return None
        found = self._by_start[self._starts[at - 1]]
        return found if found.end is None or key < found.end else None

    def overlapping(self, start: bytes, end: bytes | None) -> Iterator[RangeDescriptor]:
        """Yield the ranges that contain a part of ``[start, end)``, in the order of their keys."""
        first = self.owner(start)
        if first is not None and (end is None or start < end):
            yield first
        for at in range(bisect_right(self._starts, start), len(self._starts)):
            if end is not None and self._starts[at] >= end:
                return
            yield self._by_start[self._starts[at]]

    def pieces(self, start: bytes, end: bytes | None) -> Iterator[Piece]:
        """Cut ``[start, end)`` at the bounds of ranges; yield the pieces, gaps included."""
        at: bytes | None = start
        for known in self.overlapping(start, end):
            if at is not None and at < known.start:
                yield Piece(at, known.start, None)
            upper = _lower(known.end, end)
            yield Piece(max(start, known.start), upper, known)
            at = upper
        if at is not None and (end is None or at < end):
            yield Piece(at, end, None)

    def last_piece(self, start: bytes, end: bytes | None) -> Piece | None:
        """Return the last one of the pieces of ``[start, end)``; ``None``: there is none."""
        at = len(self._starts) if end is None else bisect_left(self._starts, end)
        lower = max(start, self._starts[at - 1]) if at else start
        return max(self.pieces(lower, end), default=None, key=lambda piece: piece.start)

    def piece_from(self, number: int) -> Piece:
        """Return a piece of all keys that begins with a known range; another one for each number.

        If no range is known, all keys are one piece.
        """
        start = self._starts[number % len(self._starts)] if self._starts else b""
        return next(self.pieces(start, None))

    def owners(self, concern: KeySet) -> set[RangeDescriptor | None]:
        """Return the ranges that contain a part of ``concern``; ``None`` among them: a gap."""
        return set(self._owners(concern))

    def are_several(self, concern: KeySet) -> bool:
        """Return whether not all of ``concern`` lies in one range, or in gaps."""
        owners = self._owners(concern)
        first = next(owners, None)
        return any(each != first for each in owners)

    def _owners(self, concern: KeySet) -> Iterator[RangeDescriptor | None]:
        """Yield the owner of each key and piece of ``concern``.

        An empty span belongs to the range of its start, at the nodes too.
        """
        yield from map(self.owner, concern.keys)
        for start, end in concern.spans:
            yield self.owner(start)
            for piece in self.pieces(start, end):
                yield piece.descriptor

    def cut(self, concern: KeySet) -> list[KeySet]:
        """Cut keys and spans at the bounds of ranges; return the part in each, and in each gap.

        The parts are in the order of the ranges.
        """
        found: dict[tuple[int, bool], tuple[list[bytes], list[tuple[bytes, bytes | None]]]] = {}
        for key in concern.keys:
            found.setdefault(self._number(key), ([], []))[0].append(key)
        for span in concern.spans:
            for start, end, _ in self.pieces(*span):
                found.setdefault(self._number(start), ([], []))[1].append((start, end))
        return [KeySet(tuple(found[at][0]), tuple(found[at][1])) for at in sorted(found)]

    def _number(self, key: bytes) -> tuple[int, bool]:
        """Return the number of the range of a key; true: the key lies in the gap behind it."""
        return bisect_right(self._starts, key), self.owner(key) is None

    def has_gap(self) -> bool:
        """Return whether a key lies in a gap."""
        return any(piece.descriptor is None for piece in self.pieces(b"", None))


def _is_sound(told: RangeDescriptor) -> bool:
    """Return whether a descriptor could be one of a range with keys."""
    longest = max(len(told.start), len(told.end or b""))
    return (
        told.range_id > 0
        and told.generation > 0
        and longest <= KEY_BYTES_MAX
        and (told.end is None or told.start < told.end)
    )


def is_whole(descriptor: RangeDescriptor) -> bool:
    """Return whether a range contains every key."""
    return not descriptor.start and descriptor.end is None


def overlap(one: RangeDescriptor, other: RangeDescriptor) -> bool:
    """Return whether two ranges have a key in common."""
    end = _lower(one.end, other.end)
    return end is None or max(one.start, other.start) < end


def _lower(one: bytes | None, other: bytes | None) -> bytes | None:
    """Return the lower of two ends of spans; ``None`` is above all."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
