"""The calls whose tries did not succeed: each is tried again, or ends.

::

    not the leader ──────────────▶ the queue, at once: another node leads
    not the range of its keys ───▶ the queue of another lane, at once, or after a pause
    a clock too far ahead,
    too much to do, no room ─────▶ the queue, after a pause     (until its deadline)
    an outcome not known yet ────▶ the queue, after a pause
    anything else, withdrawn ────▶ told

*Everything may be sent again.* Reads and waits do no harm. A commit that was sent before is
recognised by its transaction's id and gets the answer of the first time. If there is no plain
answer, :mod:`.outcomes` decides what is told.

*The client may be wrong about the ranges*, and so may a node. A refused call is sent to each node
for each range once. It pauses before it is sent there again, and after ``WRONG_RANGES_MAX``
refusals. A range that no node confirms is forgotten meanwhile, and others are asked
(:mod:`.search`).

``PendingCalls`` has the calls that pause, and the time-outs. Only the router moves calls.
"""

from __future__ import annotations

import heapq
import random  # noqa: TID251 - passed in, as an instance
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from postroom.client.routing.calls import HeardClock, RemoteCall, UpkeepCall
from postroom.client.routing.lanes import Lanes
from postroom.client.routing.links import Link
from postroom.client.routing.outcomes import Outcomes, clock_is_behind
from postroom.client.routing.search import Search
from postroom.client.routing.spreading import Question
from postroom.client.routing.upkeep import LASTING, RELEASES, left_behind
from postroom.client.sender import LONGEST_REFUSED_SECONDS, REFUSED_SECONDS_FIRST
from postroom.errors import (
    CommitUnknown,
    NoSuchQueue,
    Unavailable,
)
from postroom.limits import CLIENT_WAITS_MAX, LOOKED_FOR_AT_ONCE, WRONG_RANGES_MAX
from postroom.messaging.queues.queries import ReadQueues
from postroom.protocol.failures import (
    CLOCK_AHEAD,
    NOT_LEASEHOLDER,
    WITHDRAWN,
    WRONG_RANGE,
    DeadlineExceeded,
    Failure,
    error_from,
    leader_address,
    leaders_range,
    ranges_of,
)
from postroom.ranges.descriptor import RangeDescriptor
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
        lanes: the calls that wait for a node.
        pending: the calls that pause.
        outcomes: decide what is told about calls that end.
        search: knows who leads.
        clock: the nodes' clock, as far as it was heard.
        pauses: tell how long to wait.

    Attributes:
        assign: appends a call to its lane.
        assign_new: the same for one that is under way in the place of another one.
    """

    def __init__(
        self,
        lanes: Lanes,
        pending: PendingCalls,
        outcomes: Outcomes,
        search: Search,
        clock: HeardClock,
        pauses: RetryTimes,
    ) -> None:
        self.assign: Callable[[RemoteCall], None]
        self.assign_new: Callable[[RemoteCall], None]
        self._lanes = lanes
        self._pending = pending
        self._outcomes = outcomes
        self._search = search
        self._clock = clock
        self._pauses = pauses
        self._left: deque[RemoteCall] = deque(maxlen=CLIENT_WAITS_MAX)
        self._looking = 0

    # --- a call ends

    def finish(self, call: RemoteCall, error: BaseException) -> None:
        """End a call with an error."""
        self.done(call)
        if type(call.request) is CommitTransaction:
            self._lanes.ended(call.request.transaction_id)
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
            left = left_behind(call, self._has_looked)
            if left is not None:
                self._left.append(left)
                self._look_for_left()

    def _look_for_left(self) -> None:
        """Send requests that replace lost claims; each goes to all ranges, so few at a time."""
        while self._left and self._looking < LOOKED_FOR_AT_ONCE:
            self._looking += 1
            self.assign(self._left.popleft())

    def _has_looked(self) -> None:
        """Send the next of them, since one is answered."""
        self._looking -= 1
        self._look_for_left()

    # --- a call is tried again

    def again(self, call: RemoteCall, *, forgotten: bool = False) -> bool:
        """Prepare ``call`` to be sent again; return whether it needs to be.

        Args:
            call: the call.
            forgotten: whether nothing is protected for the client where it was sent: its link has
                ended, or the node does not lead.
        """
        if call.is_bound and not call.done:
            call.refused_there()
            return False
        call.link = None
        if isinstance(call, UpkeepCall):
            kind = type(call.request)
            return kind in LASTING or (kind in RELEASES and not forgotten)
        if call.done or call.withdrawn:
            self.leave(call)
        if call.done:
            return False
        if call.withdrawn:
            self.finish(call, DeadlineExceeded())
            return False
        if forgotten and type(call.request) is Unprotect:
            self.done(call)
            call.complete(None, None)
            return False
        if call.waits and call.timeout_seconds is None:
            call.deadline = self._pauses.deadline()
        return True

    def try_later(self, call: RemoteCall, seconds: float) -> None:
        """Send ``call`` again after about ``seconds``, if it needs to be."""
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
        if name == NOT_LEASEHOLDER and call.is_bound:
            call.lost()
        elif name == NOT_LEASEHOLDER:
            self._redirected(link, call, failure)
        elif name == WRONG_RANGE:
            self._misdirected(link, call, failure)
        elif name == WITHDRAWN or call.withdrawn:
            self.finish(call, DeadlineExceeded())
        elif name == CLOCK_AHEAD:
            self._clock_refused(call, clock)
        elif name == CommitUnknown.__name__ and self._outcomes.may_be_told_yet(call):
            call.maybe = True
            self.try_later(call, 0.02)
        else:
            error = error_from(failure)
            if isinstance(error, NoSuchQueue) and self._may_exist(call, error):
                answered = partial(self._has_looked_for, call, error)
                self.assign_new(Question(ReadQueues(error.queue), call, answered))
            elif isinstance(error, Unavailable):
                self._refused(call, error)
            else:
                self._finish_failed(call, error)

    def _finish_failed(self, call: RemoteCall, error: Exception) -> None:
        """End a call whose last try has failed with an error."""
        self.finish(call, self._outcomes.failed(call, error))

    def _may_exist(self, call: RemoteCall, error: NoSuchQueue) -> bool:
        """Return whether another range may know of the queue that a range does not know."""
        return (
            self._lanes.only is None and bool(error.queue) and type(call.request) is not ReadQueues
        )

    def _has_looked_for(
        self, call: RemoteCall, told: NoSuchQueue, found: Any, error: BaseException | None
    ) -> None:
        """Let a call pause if the root knows its queue, else end it with what it was told.

        The root alone makes queues, and other ranges hear of it a moment later. It is asked each
        time that one of them says this, so the call goes on until its deadline.
        """
        if error is None and any(not each.dropped for each in found):
            self.rest(call)
        else:
            self._finish_failed(call, told)

    def _refused(self, call: RemoteCall, refusal: Unavailable) -> None:
        """Send a call again that the node cannot serve now, until its deadline.

        The pauses get longer and longer, so that refused calls do not increase the load.
        """
        call.refused = refusal
        pause = min(REFUSED_SECONDS_FIRST * 2.0**call.refusals, LONGEST_REFUSED_SECONDS)
        call.refusals += 1
        self.try_later(call, max(refusal.retry_after, pause))

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
        self.try_later(call, 0.05)

    def _redirected(self, link: Link, call: RemoteCall, failure: Failure) -> None:
        """Send a call to the node that leads instead of the one that was asked."""
        descriptor = leaders_range(failure)
        if descriptor is not None:
            self.learn([descriptor], link)
        lane = self._lanes.only or self._lanes.of_sent(call)
        if type(call.request) is Unprotect:
            self._lanes.root.holdings.given_back(call.request.timestamp)
        if self.again(call, forgotten=True):
            self.assign(call)
        self._search.denied(link, lane, Unavailable(failure[1]), leader_address(failure))

    def _misdirected(self, link: Link, call: RemoteCall, failure: Failure) -> None:
        """Send a call to the range that has its keys instead of the one that was asked."""
        descriptors, way, leads = ranges_of(failure), call.way, bool(link.lanes)
        has_changed = self.learn(descriptors, link)
        if has_changed and leads:  # the node that led a range before its split leads both halves
            self._lanes.expect(descriptors, link)
        if way is None:
            if not has_changed:  # it leads, it says, and has not the range that it leads
                self._redirected(link, call, (failure[0], failure[1], None))
                return
        else:
            way.is_stray = True
            way.refused.add((link.node_id, way.named))
            if way.named is not None and self._lanes.cache.by_id(way.named[0]) not in descriptors:
                self._lanes.refute(way.named)
                self.assign_again()
            if self._lanes.only is not None:  # the named range does not exist
                way.named = None
        self.again_elsewhere(call)

    def again_elsewhere(self, call: RemoteCall) -> None:
        """Send a call again, after a pause if too many nodes have refused it."""
        if call.way is not None and len(call.way.refused) >= WRONG_RANGES_MAX:
            self.rest(call)
        elif self.again(call):
            self.assign(call)

    def rest(self, call: RemoteCall) -> None:
        """Let a call pause, and forget which nodes have refused it: they may know better then."""
        if call.way is not None:
            call.way.refused.clear()
        call.refusals += 1
        pause = min(REFUSED_SECONDS_FIRST * 2.0**call.refusals, LONGEST_REFUSED_SECONDS)
        self.try_later(call, pause)

    def learn(self, descriptors: list[RangeDescriptor], link: Link) -> bool:
        """Take the descriptors that a node has told; return whether lanes have changed."""
        has_changed = self._lanes.learn(descriptors, link.node_id)
        if has_changed:
            self.assign_again()
        return has_changed

    def assign_again(self) -> None:
        """Assign the calls of all lanes again: other ranges are known."""
        for call in sorted(self._lanes.take_queue(), key=attrgetter("number")):
            self.assign(call)
        self._search.ranges_changed()


class PendingCalls:
    """The calls that pause, and the time-outs of all.

    Attributes:
        timed: the ends of the calls that have a time-out of their own, wherever they are.
    """

    __slots__ = ("_later", "timed")

    def __init__(self) -> None:
        self.timed: Deadlines[RemoteCall] = Deadlines()
        self._later: list[tuple[float, int, RemoteCall]] = []

    def __iter__(self) -> Iterator[RemoteCall]:
        """Return the calls that pause."""
        return (call for _, _, call in self._later)

    def pause(self, call: RemoteCall, until: float) -> None:
        """Have ``call`` tried again at ``until``."""
        heapq.heappush(self._later, (until, call.number, call))

    def next_rested(self, now: float) -> RemoteCall | None:
        """Take out a call whose pause is over; ``None``: there is none."""
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[2]
        return None

    def next_deadline(self, first: float) -> float:
        """Return when the next call is due, if that is before ``first``; else ``first``."""
        if self._later:
            first = min(first, self._later[0][0])
        timed = self.timed.first()
        return first if timed is None else min(first, timed)
