"""The entries of one group that are in memory, in the order of their keys, by kind.

::

    lanes   kind x   3 7 9        heads   (2, y) (3, x) (5, z)      of all kinds together
            kind y   2 8                  (2, y) (5, z)             of those that a wish selects
            kind z   5

Each kind has a *lane*, a sorted list whose entries are taken from its start; new entries usually go
to its end. For a wish of several kinds, a heap of the lanes' heads finds the first entry; it is
made when it is first needed. Lanes and heaps hold leftovers. An entry that has gone elsewhere stays
in its lane until it is the first one. The head of a lane that has moved on stays in the heap. When
there are more leftovers than about as many as entries, they are removed. Thus finding the first
entry costs at most the logarithm of the number of entries, however many kinds there are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from itertools import islice
from typing import Final, TypeAlias

from postroom.messaging.queues.records import Entry

Queued: TypeAlias = tuple[bytes, int, Entry]
"""An entry with its engine key and a number that no other one has: (key, number, entry)."""

LEFTOVERS_MIN: Final = 16
HEADS_KEPT: Final = 16
"""The number of selections of kinds for which the heads are kept."""


class _Lane:
    """The entries of a kind in the order of their keys; those before ``begin`` are taken."""

    __slots__ = ("begin", "queued")

    def __init__(self) -> None:
        self.queued: list[Queued] = []
        self.begin = 0

    def push(self, queued: Queued) -> bool:
        """Add an entry; return whether it is the first one now."""
        line = self.queued
        if not line or queued > line[-1]:
            line.append(queued)
            return len(line) == self.begin + 1
        at = bisect_left(line, queued, self.begin)
        line.insert(at, queued)
        return at == self.begin

    def pop(self) -> None:
        """Remove the first entry."""
        self.begin += 1
        if self.begin > LEFTOVERS_MIN and 2 * self.begin > len(self.queued):
            del self.queued[: self.begin]
            self.begin = 0

    def __len__(self) -> int:
        return len(self.queued) - self.begin


class Group:
    """The entries of a group in memory, by kind.

    Args:
        alive: the entries in memory, by engine key; all others are leftovers.
        in_one_lane: whether all kinds share a lane, because the group is in order.

    Attributes:
        count: the number of entries.
        last: the greatest key up to which no entry is missing, if there are ``more``.
        more: whether others may be stored behind them.
    """

    __slots__ = ("_alive", "_heads", "_in_one_lane", "_lanes", "_queued", "count", "last", "more")

    def __init__(self, alive: dict[bytes, Entry], *, in_one_lane: bool) -> None:
        self._alive = alive
        self._in_one_lane = in_one_lane
        self._lanes: dict[str, _Lane] = {}
        self._heads: dict[frozenset[str] | None, list[tuple[bytes, str]]] = {}
        self._queued = 0
        self.count = 0
        self.more = False
        self.last = b""

    def push(self, queued: Queued) -> None:
        """Add an entry."""
        kind = "" if self._in_one_lane else queued[2].kind
        self.count += 1
        self._queued += 1
        lane = self._lanes.get(kind)
        if lane is None:
            self._lanes[kind] = lane = _Lane()
        if lane.push(queued) and self._heads:
            self._note_head(queued[0], kind)
        if self._queued > 2 * self.count + LEFTOVERS_MIN:
            self.keep(self.queued())

    def push_all(self, queued: list[Queued]) -> None:
        """Add entries, in the order of their keys."""
        kinds = {"" if self._in_one_lane else each[2].kind for each in queued}
        if len(kinds) == 1 and not self._heads:
            lane = self._lanes.setdefault(next(iter(kinds)), _Lane())
            if not lane.queued or queued[0] > lane.queued[-1]:
                lane.queued += queued
                self.count += len(queued)
                self._queued += len(queued)
                return
        for each in queued:
            self.push(each)

    def _note_head(self, key: bytes, kind: str) -> None:
        for kinds, heads in list(self._heads.items()):
            if kinds is None or kind in kinds:
                heapq.heappush(heads, (key, kind))
                if len(heads) > 2 * len(self._lanes) + LEFTOVERS_MIN:
                    del self._heads[kinds]

    def first(self, kinds: frozenset[str] | None) -> Queued | None:
        """Return the first entry of all kinds, or of some; ``None``: there is none."""
        lanes = self._lanes
        if len(lanes) <= 1 or (kinds is not None and len(kinds) == 1):
            kind = next(iter(lanes if kinds is None or len(kinds) != 1 else kinds), "")
            return self._head(kind) if kinds is None or kind in kinds else None
        heads = self._heads.get(kinds)
        if heads is None:
            heads = self._gather_heads(kinds)
        while heads:
            key, kind = heads[0]
            head = self._head(kind)
            if head is None:
                heapq.heappop(heads)
            elif head[0] == key:
                return head
            else:
                heapq.heapreplace(heads, (head[0], kind))
        return None

    def _gather_heads(self, kinds: frozenset[str] | None) -> list[tuple[bytes, str]]:
        if len(self._heads) >= HEADS_KEPT:
            self._heads.clear()
        wanted = (kind for kind in self._lanes if kinds is None or kind in kinds)
        self._heads[kinds] = heads = [
            (self._lanes[kind].queued[self._lanes[kind].begin][0], kind) for kind in wanted
        ]
        heapq.heapify(heads)
        return heads

    def _head(self, kind: str) -> Queued | None:
        lane, alive = self._lanes.get(kind), self._alive
        if lane is None:
            return None
        while lane.begin < len(lane.queued):
            first = lane.queued[lane.begin]
            if alive.get(first[0]) is first[2]:
                return first
            lane.pop()
            self._queued -= 1
        del self._lanes[kind]
        return None

    def queued(self) -> list[Queued]:
        """Return all entries, in the order of their keys."""
        alive, lanes = self._alive, self._lanes.values()
        listed = (each for lane in lanes for each in islice(lane.queued, lane.begin, None))
        there = {each[0]: each for each in listed if alive.get(each[0]) is each[2]}
        return sorted(there.values())

    def keep(self, kept: list[Queued]) -> None:
        """Replace all entries with these, which are in the order of their keys."""
        self._lanes.clear()
        self._heads.clear()
        for each in kept:
            kind = "" if self._in_one_lane else each[2].kind
            self._lanes.setdefault(kind, _Lane()).push(each)
        self.count = self._queued = len(kept)


class Sizes:
    """The sizes of groups by powers of two, which tell a group that is about the largest."""

    def __init__(self) -> None:
        self._by_power: dict[int, dict[str, None]] = {}

    def changed(self, name: str, before: int, after: int) -> None:
        """Note that the number of entries of a group has changed."""
        old, new = before.bit_length(), after.bit_length()
        if old == new:
            return
        of_old = self._by_power.get(old)
        if of_old is not None:
            of_old.pop(name, None)
            if not of_old:
                del self._by_power[old]
        if new:
            self._by_power.setdefault(new, {})[name] = None

    def largest(self) -> str:
        """Return a group of which no other has twice as many entries; there must be one."""
        return next(iter(self._by_power[max(self._by_power)]))
