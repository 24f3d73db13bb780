"""The rounds of a node, which wake the services that may have missed something.

::

    every 5 s ── each range that is served here ─┬─ something was committed ─▶ all of its services
                                                 ├─ once a minute ───────────▶ all of its services
                                                 └─ the clock has run ahead ─▶ those with a timer

* A commit does not wake the services that look after it later, such as the collector: it would take
  longer. The rounds do.
* A service with a timer waits for a timestamp, and counts the seconds until then by the monotonic
  clock. Timestamps may come earlier than that: somebody may set the wall clock forward.
* Once a minute is in case a wake-up is lost.
* A range that rests may have garbage. If another range is at work, the store is not only read, and
  the garbage is collected.

A range at rest has no timers, and wakes nobody. A thousand of them therefore cost a node one timer.
While nothing is served here, there are no rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from postroom.kv.clock import JITTER_MILLISECONDS, LOGICAL_BITS, HybridLogicalClock
from postroom.server.replicas import Replicas
from postroom.server.services import NodeTasks, Pending

ALL_SECONDS: Final = 60.0
"""The time within which all services of a range are woken, whatever happens."""
AHEAD_MILLISECONDS: Final = 1 + JITTER_MILLISECONDS
"""The difference by which a clock has run ahead. Both clocks are read to the millisecond."""


class RoundsNode(Protocol):
    """The node, as its rounds see it."""

    clock: HybridLogicalClock
    replicas: Replicas
    tasks: NodeTasks


class ServiceRounds:
    """The rounds of one node; see the module.

    Args:
        node: the node.
        look_seconds: returns the time from one round to the next.
    """

    def __init__(self, node: RoundsNode, look_seconds: Callable[[], float]) -> None:
        self._node = node
        self._look_seconds = look_seconds
        self._number = 0
        self._begun = self._wakes_all = False
        self._committed: dict[int, int] = {}
        self._offset = 0.0

    def begin(self) -> None:
        """Begin, unless they have begun: a range is served here."""
        if not self._begun:
            self._offset = self._clock_offset()
            self._plan()

    def wake_all(self) -> None:
        """Wake all services in the next round: a setting that concerns all ranges has changed."""
        self._wakes_all = True

    def _plan(self) -> None:
        self._begun = True
        pending = Pending()
        pending.callback = self._look
        self._node.tasks.at(self._look_seconds(), pending)

    def _look(self) -> None:
        self._begun = False
        before, self._committed = self._committed, {}
        ahead, wakes_all = self._has_run_ahead(), self._wakes_all
        rounds = max(round(ALL_SECONDS / self._look_seconds()), 1)
        self._number, self._wakes_all = (self._number + 1) % rounds, False
        for range_id, hosted in self._node.replicas.hosted.items():
            if not hosted.services.running:
                hosted.rouse_to_collect()
                continue
            committed = self._committed[range_id] = hosted.replica.last_commit
            is_due = range_id % rounds == self._number
            if is_due or wakes_all or committed != before.get(range_id):
                hosted.services.wake()
            elif ahead:
                hosted.services.wake_timed()
        if self._committed:
            self._plan()

    def _has_run_ahead(self) -> bool:
        """Return whether timestamps come earlier than by the offset that was the least so far."""
        offset = self._clock_offset()
        self._offset, ahead = min(self._offset, offset), offset - self._offset
        if ahead <= AHEAD_MILLISECONDS:
            return False
        self._offset = offset
        return True

    def _clock_offset(self) -> float:
        """Return the milliseconds by which timestamps are ahead of the monotonic clock."""
        clock = self._node.clock
        return (clock.reading() >> LOGICAL_BITS) - 1000 * self._node.tasks.monotonic()
