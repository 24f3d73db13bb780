"""A queue of calls in which each client has its turn.

A client that sends a thousand requests at once waits for them itself; one that sends a single one
waits behind one of each of the others. The requests of one client stay in their order. Calls
without an owner (of an embedded store, say) are those of one client.

Calls may be appended by several threads at once, without a lock: they arrive in a plain ``deque``,
and whoever drives the node, one thread at a time, sorts them. Everything else is for that thread.

Deficit-free round robin (Nagle, RFC 970): requests are counted, not weighed; what one of them may
cost is bounded elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from postroom.ranges.calls import Call


class FairQueue:
    """See the module. What it has of ``deque`` does the same.

    Attributes:
        arrived, by_owner: what it holds; both are empty if it is, which is quicker to see than by
            its length. Only to look at.
    """

    def __init__(self) -> None:
        self.arrived: deque[Call] = deque()
        self.by_owner: dict[object, deque[Call]] = {}
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
        self.by_owner.setdefault(call.owner, deque()).appendleft(call)

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
        owner = next(iter(by_owner))
        calls = by_owner[owner]
        call = calls.popleft()
        self._sorted -= 1
        if not calls:
            del by_owner[owner]
        elif len(by_owner) > 1:
            del by_owner[owner]
            by_owner[owner] = calls
        return call

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
                yield call

    def clear(self) -> None:
        """Forget all."""
        self.arrived.clear()
        self.by_owner.clear()
        self._sorted = 0

    def _sort(self) -> None:
        arrived, by_owner = self.arrived, self.by_owner
        while arrived:
            call = arrived.popleft()
            self._sorted += 1
            calls = by_owner.get(call.owner)
            if calls is None:
                by_owner[call.owner] = deque((call,))
            else:
                calls.append(call)
