"""The ranges of a node, in which no commit over several ranges is under way for a moment.

::

    BeStill ─▶ no commit over several ranges begins ─▶ any under way? ─ yes ─▶ waits
                                                          │ no                   │ one has ended
                                                          └─▶ answered ◀─────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary


class RangeOfNode(Protocol):
    """A range of a node that may have to be protected as a whole."""

    def is_busy(self) -> bool:
        """Return whether transactions over several ranges are under way here."""

    @property
    def look(self) -> Callable[[], None]:
        """Return a function that has the reads which wait look again."""


class RangesOfNode:
    """The ranges of a node, which are still together before they are protected as a whole.

    The first one that is protected has the clock of the node pass over the timestamp. A
    transaction that is under way in another one would commit above that.
    """

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, RangeOfNode] = WeakValueDictionary()
        self._still_until = 0
        self._waiting: dict[int, int] = {}
        self._is_looking = False

    def __setitem__(self, range_id: int, of_node: RangeOfNode) -> None:
        self._by_id[range_id] = of_node

    def update(self, other: RangesOfNode) -> None:
        """Add the ranges of ``other``."""
        self._by_id.update(other._by_id)

    def be_still(self, at: int) -> None:
        """Let no commit over several ranges begin before a timestamp."""
        self._still_until = max(at, self._still_until)

    def are_still(self, now: int) -> bool:
        """Return whether no commit over several ranges may begin now."""
        return self._still_until > now

    def wait(self, range_id: int, at: int) -> None:
        """Note that a range waits until none of them is busy."""
        self._waiting[range_id] = max(at, self._waiting.get(range_id, 0))

    def are_busy(self) -> bool:
        """Return whether transactions over several ranges are under way."""
        return any(each.is_busy() for each in self._by_id.values())

    def look_again(self, now: int) -> None:
        """Have those that wait look again, if none of them is busy or their time has come."""
        waiting = self._waiting
        if not waiting or self._is_looking or (min(waiting.values()) > now and self.are_busy()):
            return
        self._waiting, self._is_looking = {}, True
        try:
            for each in [self._by_id[each] for each in waiting if each in self._by_id]:
                each.look()
        finally:
            self._is_looking = False
