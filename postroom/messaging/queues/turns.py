"""The order in which the groups of a queue take turns; one order for each wish.

::

    additions ─▶ groups that may have something for this wish   a c d a c d …
                       ▲         │ it has nothing, or is held
                       └ added ──┘

All consumers with the same wish share one order of turns. A group joins it when an entry is added
that may be wanted. It leaves when its turn comes and it has nothing. Thus groups that have nothing
make taking no slower, however many they are.

A wish for kinds is decided by the kind alone (:mod:`.lanes`). A wish that looks closer, at keys or
headers, tests each entry once, when a consumer wants to take one. The entries that it takes are
kept here by group. In an ordered queue only the first entry of a group counts.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from postroom.messaging.queues.lanes import LEFTOVERS_MIN, Group, Queued
from postroom.messaging.queues.records import Entry


class Wants(Protocol):
    """The messages that a consumer takes.

    Attributes:
        kinds: the kinds that it takes; ``None``: any.
        looks_closer: whether it depends on more than the kind.
    """

    kinds: frozenset[str] | None
    looks_closer: bool

    def takes(self, entry: Entry) -> bool:
        """Return whether it takes this entry."""


class Turns:
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

    def __init__(self, wants: Wants | None, alive: dict[bytes, Entry], *, ordered: bool) -> None:
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
