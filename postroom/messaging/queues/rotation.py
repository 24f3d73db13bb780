"""The order in which the groups of a queue take turns, and the entries of each group in memory.

::

    additions ─▶ groups that may have something for this wish   a c d a c d …
                       ▲         │ it has nothing, or is held
                       └ added ──┘

All consumers with the same wish share one rotation. A group joins it when an entry is added
that may be wanted. It leaves when its turn comes and it has nothing. Thus groups that have nothing
make taking no slower, however many they are.

A wish for kinds is decided by the kind alone. A wish that looks closer, at keys or headers, tests
each entry once, when a consumer wants to take one. The entries that it takes are
kept here by group. In an ordered queue only the first entry of a group counts.

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
from collections import deque
from itertools import islice
from typing import Final, TypeAlias

from postroom.messaging.queues.consumers import Wish
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

    def pop(self, number: int = 1) -> None:
        """Remove the first entries."""
        self.begin += number
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

    def run(self, entries_max: int) -> list[Queued]:
        """Return the first entries, if all entries are in one lane; else nothing."""
        if len(self._lanes) != 1 or self._head(next(iter(self._lanes))) is None:
            return []
        (lane,), alive = self._lanes.values(), self._alive
        run = lane.queued[lane.begin : lane.begin + entries_max]
        for number, (key, _, entry) in enumerate(run):
            if alive.get(key) is not entry:
                return run[:number]
        return run

    def pop_run(self, number: int) -> None:
        """Remove the first entries of a run."""
        (lane,) = self._lanes.values()
        lane.pop(number)
        if not lane:  # no lane is empty: all that is known of one is its first entry
            self._lanes.clear()
        self._queued -= number
        self.count -= number

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


class Rotation:
    """The order of turns of the groups of a queue, for one wish.

    Args:
        wants: what is taken; ``None``: anything.
        alive: the entries in memory, by engine key.
        ordered: whether only the first entry of a group counts; entries without a group are in no
            order.

    Attributes:
        kinds: the kinds that are taken; ``None``: any.
        is_plain: whether the first entry of these kinds in a group is taken, whatever it is.
        line: the groups in the order of their turns. Its length is at most about twice the number
            of entries in memory.
    """

    __slots__ = (
        "_alive", "_chosen", "_in_line", "_kept", "_ordered", "_refused", "_tests", "_untested",
        "_wants", "is_plain", "kinds", "line",
    )  # fmt: skip

    def __init__(self, wants: Wish | None, alive: dict[bytes, Entry], *, ordered: bool) -> None:
        self._wants = wants
        self._alive = alive
        self._ordered = ordered
        self.kinds = None if wants is None else wants.kinds
        self._tests = wants is not None and wants.looks_closer
        self.is_plain = not (self._tests or ordered)
        self._untested: list[Queued] = []
        self._chosen: dict[str, list[Queued]] = {}
        self._kept = 0
        self._refused: dict[str, Queued] = {}
        self._in_line: set[str] = set()
        self.line: deque[str] = deque()

    def join(self, name: str) -> None:
        """Let a group join the line, since it may have something."""
        if name not in self._in_line:
            self._in_line.add(name)
            self.line.append(name)
            # A wish that takes nothing must forget the groups that are gone.
            if len(self.line) > 2 * len(self._alive) + LEFTOVERS_MIN:
                there = {entry.group for entry in self._alive.values()}
                self.line = deque(each for each in self.line if each in there or each == name)
                self._in_line = set(self.line)

    def leave(self) -> None:
        """Remove the first group of the line, which has nothing or may not fire."""
        self._in_line.discard(self.line.popleft())

    def added(self, queued: Queued) -> None:
        """Note an entry that was added to memory."""
        entry = queued[2]
        if self._ordered and entry.group:
            self.join(entry.group)
        elif self.kinds is None or entry.kind in self.kinds:
            if not self._tests:
                self.join(entry.group)
                return
            self._untested.append(queued)
            if len(self._untested) > 2 * len(self._alive) + LEFTOVERS_MIN:
                self._untested = [each for each in self._untested if self._is_alive(each)]

    def added_all(self, name: str, queued: list[Queued]) -> None:
        """Note entries of one group that were added to memory."""
        if queued and self.kinds is None and not self._tests:
            self.join(name)
            return
        for each in queued:
            self.added(each)

    def _is_alive(self, queued: Queued) -> bool:
        return self._alive.get(queued[0]) is queued[2]

    @property
    def has_untested(self) -> bool:
        """Return whether entries were added that have to be tested."""
        return bool(self._untested)

    def catch_up(self) -> None:
        """Test the entries that were added."""
        wants, untested = self._wants, self._untested
        self._untested = []
        assert wants is not None
        for each in untested:
            if self._is_alive(each) and wants.takes(each[2]):
                group = each[2].group
                heapq.heappush(self._chosen.setdefault(group, []), each)
                self._kept += 1
                self.join(group)
        if self._kept > 2 * len(self._alive) + LEFTOVERS_MIN:
            self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        alive = {name: list(filter(self._is_alive, lane)) for name, lane in self._chosen.items()}
        self._chosen = {name: sorted(lane) for name, lane in alive.items() if lane}
        self._kept = sum(map(len, self._chosen.values()))

    def first(self, name: str, group: Group) -> Queued | None:
        """Return the entry of a group that is taken next, or `None` if it has none."""
        if not (self._ordered and name):
            return self._first_chosen(name) if self._tests else group.first(self.kinds)
        head = group.first(None)
        if head is None or self._wants is None:
            return head
        if self._refused.get(name) is head:
            return None
        if self._wants.takes(head[2]):
            return head
        if len(self._refused) > 2 * len(self._alive) + LEFTOVERS_MIN:
            self._refused.clear()
        self._refused[name] = head
        return None

    def _first_chosen(self, name: str) -> Queued | None:
        lane = self._chosen.get(name)
        if lane is None:
            return None
        while lane and not self._is_alive(lane[0]):
            heapq.heappop(lane)
            self._kept -= 1
        if not lane:
            del self._chosen[name]
            return None
        return lane[0]
