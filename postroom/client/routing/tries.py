"""The calls whose tries did not succeed: each is tried again, or ends.

::

    not the leader ──────────────▶ the queue, at once: another node leads
    a clock too far ahead,
    too much to do, no room ─────▶ the queue, after a pause     (until its deadline)
    an outcome not known yet ────▶ the queue, after a pause
    anything else, withdrawn ────▶ told

*Everything may be sent again.* Reads and waits do no harm. A commit that was sent before is
recognised by its transaction's id and gets the answer of the first time. If there is no plain
answer, :mod:`.outcomes` decides what is told.

``PendingCalls`` has the calls that are not on a link: those that wait for a leader, or for their
next try::

    queue ─▶ a link ─▶ refused for now ─▶ later, after a pause ─▶ queue
    timed: all calls with a time-out of their own, wherever they are

The queue has two lines. Commits that may wait for locks of others have a line of their own: when
the largest number of them is under way, all others pass.

Only the router moves calls. ``PendingCalls`` knows where they are meanwhile, and when the next one
is due.
"""

from __future__ import annotations

import heapq
import random  # noqa: TID251 - passed in, as an instance
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from postroom.client.routing.calls import HeardClock, RemoteCall, UpkeepCall
from postroom.client.routing.holdings import LASTING, Holdings, left_behind
from postroom.client.routing.links import Link
from postroom.client.routing.outcomes import Outcomes, clock_is_behind
from postroom.client.routing.search import Search
from postroom.client.sender import LONGEST_REFUSED_SECONDS, REFUSED_SECONDS_FIRST
from postroom.errors import (
    CommitUnknown,
    Unavailable,
)
from postroom.protocol.failures import (
    CLOCK_AHEAD,
    NOT_LEASEHOLDER,
    WITHDRAWN,
    DeadlineExceeded,
    Failure,
    error_from,
    leader_address,
)
from postroom.ranges.requests import CommitTransaction, Unprotect
from postroom.ranges.waiting import Deadlines


class RetryTimes(NamedTuple):
    """The times of pauses and deadlines, on the client's monotonic clock.

    Attributes:
        monotonic: returns seconds that never go back.
        random: spreads the ends of pauses.
        request_seconds: the time after which a request without a time-out of its own ends.
        arm: called with the time at which the router is to look again.
    """

    monotonic: Callable[[], float]
    random: random.Random
    request_seconds: float
    arm: Callable[[float], None]

    def end(self, seconds: float) -> float:
        """Return the end of a pause of about ``seconds`` that begins now."""
        return self.monotonic() + seconds * self.random.uniform(0.5, 1.0)

    def deadline(self) -> float:
        """Return the end of a request that is sent now and has no time-out of its own."""
        return self.monotonic() + self.request_seconds


class FailedTries:
    """The calls whose tries did not succeed.

    Args:
        pending: the calls that are not on a link.
        outcomes: decide what is told about calls that end.
        search: knows who leads.
        holdings: know what is held for this client.
        clock: the nodes' clock, as far as it was heard.
        pauses: tell how long to wait.
    """

    def __init__(
        self,
        pending: PendingCalls,
        outcomes: Outcomes,
        search: Search,
        holdings: Holdings,
        clock: HeardClock,
        pauses: RetryTimes,
    ) -> None:
        self._pending = pending
        self._outcomes = outcomes
        self._search = search
        self._holdings = holdings
        self._clock = clock
        self._pauses = pauses

    # --- a call ends

    def finish(self, call: RemoteCall, error: BaseException) -> None:
        """End a call with an error."""
        self.done(call)
        if type(call.request) is CommitTransaction:
            self._holdings.ended(call.request.transaction_id)
        call.complete(None, error)

    def done(self, call: RemoteCall) -> None:
        """Note that a call was told its outcome, or that its caller has gone."""
        call.done = True
        if call.timeout_seconds is not None:
            self._pending.timed.cancel(call)

    def leave(self, call: RemoteCall) -> None:
        """Note that the caller has gone; queue the request that replaces a lost claim.

        The claim may have been answered, on a link that is lost, and no node will say this by
        itself.
        """
        link = call.link
        if link is None or call.number not in link.sent:
            left = left_behind(call)
            if left is not None:
                self._pending.append(left)

    # --- a call is tried again

    def again(self, call: RemoteCall) -> bool:
        """Prepare ``call`` to be sent again; return whether it needs to be."""
        call.link = None
        if type(call) is UpkeepCall:
            return type(call.request) in LASTING
        if call.done or call.withdrawn:
            self.leave(call)
        if call.done:
            return False
        if call.withdrawn:
            self.finish(call, DeadlineExceeded())
            return False
        if type(call.request) is Unprotect:
            self.done(call)
            call.complete(None, None)
            return False
        if call.waits and call.timeout_seconds is None:
            call.deadline = self._pauses.deadline()
        return True

    def _try_later(self, call: RemoteCall, seconds: float) -> None:
        if self.again(call):
            when = self._pauses.end(seconds)
            self._pending.pause(call, when)
            self._pauses.arm(when)

    # --- the answer of a node

    def failed(self, link: Link, call: RemoteCall, failure: Failure, clock: int) -> None:
        """Handle a node's answer that it could not, or would not.

        Args:
            link: the link to that node.
            call: the request.
            failure: the answer.
            clock: the node's clock in the answer.
        """
        name = failure[0]
        if name == NOT_LEASEHOLDER:
            self._redirected(link, call, failure)
        elif name == WITHDRAWN or call.withdrawn:
            self.finish(call, DeadlineExceeded())
        elif name == CLOCK_AHEAD:
            self._clock_refused(call, clock)
        elif name == CommitUnknown.__name__ and self._outcomes.may_be_told_yet(call):
            call.maybe = True
            self._try_later(call, 0.02)
        else:
            error = error_from(failure)
            if isinstance(error, Unavailable):
                self._refused(call, error)
            else:
                self.finish(call, self._outcomes.failed(call, error))

    def _refused(self, call: RemoteCall, refusal: Unavailable) -> None:
        """Send a call again that the node cannot serve now, until its deadline.

        The pauses get longer and longer, so that refused calls do not increase the load.
        """
        call.refused = refusal
        pause = min(REFUSED_SECONDS_FIRST * 2.0**call.refusals, LONGEST_REFUSED_SECONDS)
        call.refusals += 1
        self._try_later(call, max(refusal.retry_after, pause))

    def _clock_refused(self, call: RemoteCall, clock: int) -> None:
        """Send a call again that has begun in the node's future.

        A commit begins now instead, if no other try may have been evaluated. It does no harm:
        an older transaction expires sooner, and the node looks for its record.
        """
        self._clock.refused(clock)
        request = call.request
        is_commit = type(request) is CommitTransaction
        if is_commit and not call.maybe and request.began > clock:
            call.request = msgspec.structs.replace(request, began=clock)
        call.refused = clock_is_behind()
        call.refusals += 1
        self._try_later(call, 0.05)

    def _redirected(self, link: Link, call: RemoteCall, failure: Failure) -> None:
        if self.again(call):
            self._pending.append(call)
        self._search.denied(link, Unavailable(failure[1]), leader_address(failure))


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
