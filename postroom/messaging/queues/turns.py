"""Whose turn it is, among the groups of a queue: an order of turns for each wish.

::

    additions ─▶ groups that may have something for this wish   a c d a c d …
                       ▲         │ it has nothing, or is held
                       └ added ──┘

All consumers that take the same share one order of turns. A group is in it once something was added
that may be wanted, and leaves it when its turn comes and it has nothing: so taking costs nothing
for groups that have nothing, however many there are.

Kinds tell by themselves whether an entry is wanted (:mod:`.lanes`). Of a wish that looks closer, at
keys or headers, each entry is tested once, when somebody wants to take; those that it takes are
kept here beside the groups. In an ordered queue only the first entry of a group counts.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from postroom.messaging.queues.lanes import LEFTOVERS_MIN, Group, Queued
from postroom.messaging.queues.records import Entry


class Wants(Protocol):
    """What a consumer takes.

    Attributes:
        kinds: these, or any.
        looks_closer: whether it depends on more than the kind.
    """

    kinds: frozenset[str] | None
    looks_closer: bool

    def takes(self, entry: Entry) -> bool:
        """Whether it takes this one."""


class Turns:
    """See the module.

    Args:
        wants: what is taken; ``None``: anything.
        alive: by engine key, the entries that are in memory.
        ordered: whether only the first entry of a group counts.

    Attributes:
        kinds: which ones are taken; ``None``: any.
        is_plain: whether of a group the first one of these is taken, whatever it is.
        line: the groups, by turns. It holds about twice as many as there are at most.
    """

    __slots__ = (
        "_alive", "_chosen", "_in_line", "_kept", "_ordered", "_refused", "_tests", "_untested",
        "_wants", "is_plain", "kinds", "line",
    )  # fmt: skip

    def __init__(self, wants: Wants | None, alive: dict[bytes, Entry], *, ordered: bool) -> None:
        self._wants = wants
        self._alive = alive
        self._ordered = ordered
        self.kinds = None if wants is None else wants.kinds
        self._tests = wants is not None and wants.looks_closer and not ordered
        self.is_plain = not (self._tests or ordered)
        self._untested: list[Queued] = []
        self._chosen: dict[str, list[Queued]] = {}
        self._kept = 0
        self._refused: dict[str, Queued] = {}
        self._in_line: set[str] = set()
        self.line: deque[str] = deque()

    def join(self, name: str) -> None:
        """A group may have something."""
        if name not in self._in_line:
            self._in_line.add(name)
            self.line.append(name)
            if len(self.line) > 2 * len(self._alive) + LEFTOVERS_MIN:  # who does not take, forgets
                there = {entry.group for entry in self._alive.values()}
                self.line = deque(each for each in self.line if each in there or each == name)
                self._in_line = set(self.line)

    def leave(self) -> None:
        """The group whose turn it is has nothing, or may not fire."""
        self._in_line.discard(self.line.popleft())

    def added(self, queued: Queued) -> None:
        """Another entry is in memory."""
        entry = queued[2]
        if self._ordered:
            self.join(entry.group)
        elif self.kinds is None or entry.kind in self.kinds:
            if not self._tests:
                self.join(entry.group)
                return
            self._untested.append(queued)
            if len(self._untested) > 2 * len(self._alive) + LEFTOVERS_MIN:
                self._untested = [each for each in self._untested if self._is_alive(each)]

    def added_all(self, name: str, queued: list[Queued]) -> None:
        """Other entries of one group are."""
        if queued and self.kinds is None and not self._tests:
            self.join(name)
            return
        for each in queued:
            self.added(each)

    def _is_alive(self, queued: Queued) -> bool:
        return self._alive.get(queued[0]) is queued[2]

    @property
    def has_untested(self) -> bool:
        """Whether something was added that has to be tested."""
        return bool(self._untested)

    def catch_up(self) -> None:
        """What was added is tested."""
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
        """What is taken next of a group; ``None``: it has nothing."""
        if self._tests:
            return self._first_chosen(name)
        if self.is_plain:
            return group.first(self.kinds)
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
