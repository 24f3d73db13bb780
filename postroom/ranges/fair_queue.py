"""A queue of calls in which each principal has its turn, and each client of it.

A client that sends a thousand requests at once waits for them itself; one that sends a single one
waits behind one of each of the other principals (:mod:`.rounds`). The requests of one client stay
in their order. Calls without an owner (of an embedded store, say) are those of one client.

Calls may be appended by several threads at once, without a lock: they arrive in a plain ``deque``,
and whoever drives the node, one thread at a time, sorts them. Everything else is for that thread.

Deficit-free round robin: requests are counted, not weighed; what one of them may
cost is bounded elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from postroom.ranges.calls import Call
from postroom.ranges.rounds import Rounds


class FairQueue:
    """See the module. What it has of ``deque`` does the same.

    Attributes:
        arrived, by_owner: what it holds; both are empty if it is, which is quicker to see than by
            its length. Only to look at.
    """

    def __init__(self) -> None:
        self.arrived: deque[Call] = deque()
        self.by_owner: dict[object, deque[Call]] = {}
        self._rounds: Rounds[object] = Rounds()
        self._sorted = 0

    def __len__(self) -> int:
        return self._sorted + len(self.arrived)

    def __iter__(self) -> Iterator[Call]:
        self._sort()
        for calls in self.by_owner.values():
            yield from calls

    def append(self, call: Call) -> None:
        """The last one of its owner. May be called by any thread."""
        self.arrived.append(call)

    def appendleft(self, call: Call) -> None:
        """The first one of its owner, again."""
        self._sort()
        self._sorted += 1
        calls = self.by_owner.get(call.owner)
        if calls is None:
            self._begin(call)
        else:
            calls.appendleft(call)

    def _begin(self, call: Call) -> None:
        self.by_owner[call.owner] = deque((call,))
        self._rounds.add(call.principal, call.owner)

    def popleft(self) -> Call:
        """The first one of whoever has waited longest for a turn.

        Raises:
            StopIteration: there is none.
        """
        by_owner = self.by_owner
        if self.arrived:
            if not by_owner and len(self.arrived) == 1:
                return self.arrived.popleft()
            self._sort()
        owner = self._rounds.pop()
        calls = by_owner[owner]
        call = calls.popleft()
        self._sorted -= 1
        if calls:
            self._rounds.add(call.principal, owner)
        else:
            del by_owner[owner]
        return call

    def has_others_than(self, owner: object) -> bool:
        """Return whether somebody else has something in it."""
        self._sort()
        return any(each is not owner for each in self.by_owner)

    def taken(self) -> Iterator[Call]:
        """``popleft`` until there is none: cheaper for many calls of one owner."""
        by_owner = self.by_owner
        while self.arrived or by_owner:
            if not by_owner and len(self.arrived) == 1:
                yield self.arrived.popleft()
                continue
            if self.arrived or len(by_owner) != 1:
                yield self.popleft()
                continue
            ((owner, calls),) = by_owner.items()
            while calls and not self.arrived:
                self._sorted -= 1
                call = calls.popleft()
                if not calls:
                    del by_owner[owner]
                    self._rounds.clear()
                yield call

    def clear(self) -> None:
        """Forget all."""
        self.arrived.clear()
        self.by_owner.clear()
        self._rounds.clear()
        self._sorted = 0

    def _sort(self) -> None:
        arrived, by_owner = self.arrived, self.by_owner
        while arrived:
            call = arrived.popleft()
            self._sorted += 1
            calls = by_owner.get(call.owner)
            if calls is None:
                self._begin(call)
            else:
                calls.append(call)
