"""The turns of a node with several ranges: only those take part that have something to do.

::

    a range wakes its host ── note ──▶ woken ─┐
    its deadline has come ────────────────────┼─▶ awake ── evaluate ─▶ those that want more
    the first range (room for requests) ──────┘

A node may have a thousand ranges, of which few are busy. A turn therefore costs nothing for the
others: a replica says when it has something to do, by a wake-up or by its next deadline. A deadline
may change with each turn of the replica, and when its proposal ends. It is asked for anew then.

``note`` and the requests of clients come from any thread, all else under the driver's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from postroom.ranges.replica import Replica
from postroom.ranges.turn import take_turn
from postroom.ranges.waiting import Deadlines, Line


class RangeTurns:
    """The turns of several ranges; see the module.

    Args:
        monotonic: seconds that never go back.
        replicas: returns all replicas; the first one has a part in each turn.
        by_id: returns the replica of a range.

    Attributes:
        note: has a replica take part in the next turn.
        lines: the lines of calls that wait, of each replica; ``None``: other replicas have come.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        replicas: Callable[[], list[Replica]],
        by_id: Callable[[int], Replica],
    ) -> None:
        self._monotonic = monotonic
        self._replicas = replicas
        self._by_id = by_id
        self.lines: list[Mapping[object, Line]] | None = None
        self._woken: deque[Replica] = deque()
        self.note = self._woken.append
        self._awake: dict[int, Replica] = {}
        self._changed: dict[int, Replica] = {}  # their deadlines are not known yet
        self._deadlines: Deadlines[int] = Deadlines()

    def remove(self, replica: Replica) -> None:
        """Forget a replica."""
        self._take_in()
        self._deadlines.cancel(replica.range_id)
        for each in (self._awake, self._changed):
            each.pop(replica.range_id, None)

    def _take_in(self) -> None:
        woken, awake = self._woken, self._awake
        while woken:
            replica = woken.popleft()
            awake[replica.range_id] = replica

    def wants_turn(self) -> bool:
        """Return whether a replica that is awake has something to do."""
        self._take_in()
        return any(replica.wants_turn() for replica in self._awake.values())

    def hurries(self) -> bool:
        """Return whether a request waits for the result of upkeep.

        Each wake-up of a service asks this.
        """
        if self.lines is None:
            self.lines = [replica.waiting_for for replica in self._replicas()]
        return any(self.lines)

    def evaluate(self) -> None:
        """Have all that are awake, or due, take a turn together."""
        self._take_in()
        turning, self._awake = self._awake, {}
        for range_id in self._deadlines.take_due(self._monotonic()):
            turning[range_id] = self._by_id(range_id)
        first = self._replicas()[0]
        turning.pop(first.range_id, None)
        turning[first.range_id] = first  # last: the others have room when it takes requests in
        self._changed |= turning
        try:
            if len(turning) == 1:
                first.turn()
            else:
                take_turn(turning.values())
        finally:
            for range_id, replica in turning.items():
                if replica.proposal is None and replica.wants_turn():
                    self._awake[range_id] = replica

    def next_deadline(self) -> float | None:
        """Return when a turn has something to do without being woken; ``None``: never."""
        deadlines, changed = self._deadlines, self._changed
        for range_id, replica in list(changed.items()):
            deadline = replica.next_deadline()
            if deadline is None:
                deadlines.cancel(range_id)
            elif deadline != deadlines.of(range_id):
                deadlines.set(range_id, deadline)
            if replica.proposal is None:  # the end of one may change the next deadline
                del changed[range_id]
        return deadlines.first()
