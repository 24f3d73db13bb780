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
"""

from __future__ import annotations

import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from postroom.client.remote import lost_claims
from postroom.client.remote.calls import RemoteCall, UpkeepCall
from postroom.client.remote.heard_clock import HeardClock
from postroom.client.remote.holdings import Holdings
from postroom.client.remote.link import Link
from postroom.client.remote.outcomes import Outcomes, clock_is_behind
from postroom.client.remote.pending import PendingCalls
from postroom.client.remote.search import Search
from postroom.client.sender import LONGEST_REFUSED_SECONDS, REFUSED_SECONDS_FIRST
from postroom.errors import CommitUnknown, Unavailable
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
            left = lost_claims.left_behind(call)
            if left is not None:
                self._pending.append(left)

    # --- a call is tried again

    def again(self, call: RemoteCall) -> bool:
        """Prepare ``call`` to be sent again; return whether it needs to be."""
        call.link = None
        if type(call) is UpkeepCall:
            return type(call.request) in lost_claims.LASTING
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


__all__ = ["FailedTries", "RetryTimes"]
