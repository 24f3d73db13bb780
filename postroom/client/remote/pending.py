"""The calls that are not on a link: those that wait for a leader, or for their next try.

::

    queue ─▶ a link ─▶ refused for now ─▶ later, after a pause ─▶ queue
    timed: all calls with a time-out of their own, wherever they are

The queue has two lines. Commits that may wait for locks of others have a line of their own: when
the largest number of them is under way, all others pass.

Only the router moves calls. This module knows where they are meanwhile, and when the next one is
due.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from postroom.client.remote.calls import RemoteCall
from postroom.client.remote.link import Link
from postroom.ranges.waiting import Deadlines


class PendingCalls:
    """The calls that are not on a link.

    Attributes:
        queue: the calls to be sent on a link, in order, except those in ``commits``.
        commits: the commits to be sent that crowd, in order.
        timed: the ends of the calls that have a time-out of their own.
    """

    __slots__ = ("_later", "commits", "queue", "timed")

    def __init__(self) -> None:
        self.queue: deque[RemoteCall] = deque()
        self.commits: deque[RemoteCall] = deque()
        self.timed: Deadlines[RemoteCall] = Deadlines()
        self._later: list[tuple[float, int, RemoteCall]] = []

    def __iter__(self) -> Iterator[RemoteCall]:
        """Return all calls in the queue, then those that pause."""
        yield from self.queue
        yield from self.commits
        for _, _, call in self._later:
            yield call

    def append(self, call: RemoteCall) -> None:
        """Append ``call`` to its line."""
        (self.commits if call.crowds else self.queue).append(call)

    def next_call(self, link: Link) -> RemoteCall | None:
        """Take out the first call that ``link`` has room for; ``None``: there is none."""
        chosen: deque[RemoteCall] | None = None
        for line in (self.queue, self.commits):
            if (
                line and (line[0].done or link.has_room(line[0]))
                and (chosen is None or line[0].number < chosen[0].number)
            ):  # fmt: skip
                chosen = line
        return None if chosen is None else chosen.popleft()

    def pause(self, call: RemoteCall, until: float) -> None:
        """Have ``call`` tried again at ``until``."""
        heapq.heappush(self._later, (until, call.number, call))

    def next_rested(self, now: float) -> RemoteCall | None:
        """Take out a call whose pause is over; ``None``: there is none."""
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        return None

    def return_first(self, calls: list[RemoteCall]) -> None:
        """Put ``calls`` before all others, in their order."""
        for call in reversed(calls):
            (self.commits if call.crowds else self.queue).appendleft(call)

    def drop_done(self) -> None:
        """Forget the calls in the queue without a waiting caller."""
        self.queue = deque(call for call in self.queue if not call.done)
        self.commits = deque(call for call in self.commits if not call.done)

    def take_queue(self) -> list[RemoteCall]:
        """Empty the queue; return its calls with a waiting caller."""
        taken = [call for call in (*self.queue, *self.commits) if not call.done]
        self.queue.clear()
        self.commits.clear()
        return taken

    def next_deadline(self, first: float) -> float:
        """Return when the next call is due, if that is before ``first``; else ``first``."""
        if self._later:
            first = min(first, self._later[0][0])
        timed = self.timed.first()
        return first if timed is None else min(first, timed)


__all__ = ["PendingCalls"]
