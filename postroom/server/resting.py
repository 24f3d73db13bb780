"""The rest of an embedded store without writes: it has no services, and writes nothing.

But the work of the services must not wait for the first write: messages that a transaction
scheduled fall due by themselves. A store therefore rests only while nothing is due, and is woken
when something is::

    opened ── nothing due ─▶ rests ─┬─ a first write, lock or reap ──▶ services begin
       └───── something due ────────┴─ an entry of an outbox is due ──▶

(:mod:`postroom.ranges.lease` says why reading without a lease of its own is safe.)
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.kv.clock import LOGICAL_BITS, HybridLogicalClock
from postroom.ranges.replica import Replica
from postroom.server.tasks import Pending, Tasks


class Rest:
    """The rest of one store; see the module.

    Args:
        first_due: returns when the first entry of an outbox is due; 0: there is none.
        clock: the node's.
        tasks: the node's, which wake it.
        look_seconds: how often the wall clock is looked at: it may have been set.
    """

    def __init__(
        self,
        first_due: Callable[[], int],
        clock: HybridLogicalClock,
        tasks: Tasks,
        look_seconds: float,
    ) -> None:
        self._first_due = first_due
        self._clock = clock
        self._tasks = tasks
        self._look_seconds = look_seconds
        self._due = 0

    def is_possible(self) -> bool:
        """Return whether nothing is due that the services would have to do."""
        due = self._due = self._first_due()
        return not due or due > self._clock.reading()

    def watch_over(self, replica: Replica) -> None:
        """Wake ``replica``, which rests, when something is due."""
        due = self._due if replica.rests else 0  # nothing has changed since it came to rest
        if not due:
            return
        milliseconds = (due - self._clock.reading() >> LOGICAL_BITS) + 1
        if milliseconds <= 0:
            replica.wake_up()
            return
        later = Pending()
        later.callback = lambda: self.watch_over(replica)
        self._tasks.at(min(milliseconds / 1000, self._look_seconds), later)
