"""The calls that are not on a link: those that wait for a leader, or for their next attempt.

::

    queue ─▶ a link ─▶ refused for now ─▶ later, after a pause ─▶ queue
    timed: all calls with a time-out of their own, wherever they are

Only the router moves calls; here is where they are meanwhile, and when the next one is due.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from postroom.client.remote.calls import RemoteCall
from postroom.ranges.deadlines import Deadlines


class PendingCalls:
    """See the module.

    Attributes:
        queue: the calls to be placed on a link, in order.
        timed: when those end that have a time-out of their own.
    """

    __slots__ = ("_later", "queue", "timed")

    def __init__(self) -> None:
        self.queue: deque[RemoteCall] = deque()
        self.timed: Deadlines[RemoteCall] = Deadlines()
        self._later: list[tuple[float, int, RemoteCall]] = []

    def __iter__(self) -> Iterator[RemoteCall]:
        """All that are in the queue, then those that pause."""
        yield from self.queue
        for _, _, call in self._later:
            yield call

    def pause(self, call: RemoteCall, until: float) -> None:
        """``call`` is tried again then."""
        heapq.heappush(self._later, (until, call.number, call))

    def next_rested(self, now: float) -> RemoteCall | None:
        """A call whose pause is over, taken out; ``None``: there is none."""
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        return None

    def return_first(self, calls: list[RemoteCall]) -> None:
        """``calls`` go before all others, in their order."""
        self.queue.extendleft(reversed(calls))

    def drop_done(self) -> None:
        """Forget the calls in the queue that nobody waits for any more."""
        self.queue = deque(call for call in self.queue if not call.done)

    def take_queue(self) -> list[RemoteCall]:
        """The calls in the queue that somebody waits for; it is left empty."""
        taken = [call for call in self.queue if not call.done]
        self.queue.clear()
        return taken

    def next_deadline(self, first: float) -> float:
        """When the next call is due, if that is before ``first``; else ``first``."""
        if self._later:
            first = min(first, self._later[0][0])
        timed = self.timed.first()
        return first if timed is None else min(first, timed)


__all__ = ["PendingCalls"]
