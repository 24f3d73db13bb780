"""Deadlines by name: one each, replaced and cancelled, never more of them than names.

A heap cannot give up an entry in its middle. A deadline that is replaced or cancelled stays there
until it comes to the top, and the heap is made anew when most of it is such leftovers. Code that
sets a deadline a million times, and cancels it as often, thus holds no more than a few dozen
entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_LEFTOVERS_MIN: Final = 16


class Deadlines(Generic[Name]):
    """Moments on a monotonic clock, by name. Its length is how many names have one."""

    __slots__ = ("_heap", "_moments", "_numbers")

    def __init__(self) -> None:
        self._moments: dict[Name, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Name]] = []
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, name: object) -> bool:
        return name in self._moments

    def begin(self, moments: Mapping[Name, float]) -> None:
        """Have these deadlines, and no others: faster than one by one."""
        numbered = enumerate(moments.items(), self._numbers + 1)
        self._moments = {name: (moment, number) for number, (name, moment) in numbered}
        self._numbers += len(moments)
        self._heap = [(*placed, name) for name, placed in self._moments.items()]
        heapq.heapify(self._heap)

    def set(self, name: Name, moment: float) -> None:
        """Set the deadline of ``name`` to ``moment``, in place of any other."""
        self._numbers += 1
        self._moments[name] = (moment, self._numbers)
        heapq.heappush(self._heap, (moment, self._numbers, name))
        self._shrink()

    def cancel(self, name: Name) -> bool:
        """Cancel the deadline of ``name``; return whether it had one."""
        if self._moments.pop(name, None) is None:
            return False
        self._shrink()
        return True

    def of(self, name: Name) -> float | None:
        """Return the moment of ``name``, or ``None`` if it has none."""
        placed = self._moments.get(name)
        return None if placed is None else placed[0]

    def first(self) -> float | None:
        """Return the earliest moment; ``None``: there is none."""
        heap = self._heap
        while heap and self._is_leftover(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def first_due(self, now: float) -> Name | None:
        """Return the name whose moment is the earliest, if it has come."""
        moment = self.first()
        return self._heap[0][2] if moment is not None and moment <= now else None

    def take_due(self, now: float) -> list[Name]:
        """Take the names whose moments have come, in order."""
        due: list[Name] = []
        if not self._heap or self._heap[0][0] > now:
            return due
        while (moment := self.first()) is not None and moment <= now:
            name = heapq.heappop(self._heap)[2]
            del self._moments[name]
            due.append(name)
        return due

    def clear(self) -> None:
        """Cancel all deadlines."""
        self._moments.clear()
        self._heap.clear()

    @property
    def entries(self) -> int:
        """Return the number of entries held, leftovers included."""
        return len(self._heap)

    def _is_leftover(self, entry: tuple[float, int, Name]) -> bool:
        return self._moments.get(entry[2]) != entry[:2]

    def _shrink(self) -> None:
        if len(self._heap) > 2 * len(self._moments) + _LEFTOVERS_MIN:
            self._heap = [(*placed, name) for name, placed in self._moments.items()]
            heapq.heapify(self._heap)


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two moments; ``None``: never."""
    return one if other is None or (one is not None and one < other) else other
