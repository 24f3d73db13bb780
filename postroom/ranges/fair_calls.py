"""Calls that wait for a turn, with something that is kept for each: principals take turns.

A call that is taken out leaves its place in the queue behind, which is passed over when it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from postroom.ranges.calls import Call
from postroom.ranges.fair_queue import FairQueue

Kept = TypeVar("Kept")


class FairCalls(Generic[Kept]):
    """See the module. What it has of ``dict`` does the same.

    Attributes:
        kept: what is kept. Only to look at: whether there is anything is asked in each turn.
    """

    __slots__ = ("_kept", "_order", "kept")

    def __init__(self) -> None:
        self.kept = self._kept = dict[Call, Kept]()
        self._order = FairQueue()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._kept)

    def __contains__(self, call: Call) -> bool:
        return call in self._kept

    def __setitem__(self, call: Call, kept: Kept) -> None:
        if call not in self._kept:
            self._order.append(call)
        self._kept[call] = kept

    def pop(self, call: Call) -> Kept | None:
        """Take a call out; return what was kept for it, ``None`` if it is not there."""
        kept = self._kept.pop(call, None)
        if not self._kept:
            self._order.clear()
        return kept

    def take(self) -> tuple[Call, Kept]:
        """Take out the call whose turn it is. There must be one."""
        while True:
            call = self._order.popleft()
            if call in self._kept:
                return call, self._kept.pop(call)

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._order.clear()


def taken(calls: dict[Call, Any] | FairCalls[Any] | FairQueue) -> list[Call]:
    """Return all of ``calls``, which is left empty."""
    all_of_them = list(calls)
    calls.clear()
    return all_of_them
