"""What becomes of a call whose attempt did not succeed: it is tried again, or it ends.

::

    not the leader ──────────────▶ the queue, at once: another node leads
    a clock too far ahead,
    too much to do, no room ─────▶ the queue, after a pause     (until its deadline)
    an outcome not known yet ────▶ the queue, after a pause
    anything else, withdrawn ────▶ told

*What may be sent again*: everything. Reads and waits do no harm; a commit that was sent before is
recognised by its transaction's id and answered as the first time. If there is no plain answer,
:mod:`.outcomes` decides what is said.
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


class Pauses(NamedTuple):
    """When something is to happen, by the client's monotonic clock.

    Attributes:
        monotonic: seconds that never go back.
        random: spreads the ends of pauses.
        request_seconds: after which a request without a time-out of its own ends.
        arm: called with when the router is to look again.
    """

    monotonic: Callable[[], float]
    random: random.Random
    request_seconds: float
    arm: Callable[[float], None]

    def end(self, seconds: float) -> float:
        """When a pause of about ``seconds`` is over that begins now."""
        return self.monotonic() + seconds * self.random.uniform(0.5, 1.0)

    def deadline(self) -> float:
        """When a request ends that is sent now and has no time-out of its own."""
        return self.monotonic() + self.request_seconds


class Attempts:
    """See the module.

    Args:
        pending: the calls that are not on a link.
        outcomes: what is said of those that end.
        search: who leads.
        holdings: what is held for this client.
        clock: the nodes', as far as it was heard.
        pauses: how long to wait.
    """

    def __init__(
        self,
        pending: PendingCalls,
        outcomes: Outcomes,
        search: Search,
        holdings: Holdings,
        clock: HeardClock,
        pauses: Pauses,
    ) -> None:
        self._pending = pending
        self._outcomes = outcomes
        self._search = search
        self._holdings = holdings
        self._clock = clock
        self._pauses = pauses

    # --- it ends

    def finish(self, call: RemoteCall, error: BaseException) -> None:
        """It has failed."""
        self.done(call)
        if type(call.request) is CommitTransaction:
            self._holdings.ended(call.request.transaction_id)
        call.complete(None, error)

    def done(self, call: RemoteCall) -> None:
        """It is told, or nobody wants to hear of it."""
        call.done = True
        if call.timeout_seconds is not None:
            self._pending.timed.cancel(call)

    def leave(self, call: RemoteCall) -> None:
        """Nobody waits for it any more. If no node will say what became of it, somebody must ask:
        it may have been done, on a link that is lost.
        """
        link = call.link
        if link is None or call.number not in link.sent:
            left = lost_claims.left_behind(call)
            if left is not None:
                self._pending.queue.append(left)

    # --- it is tried again

    def again(self, call: RemoteCall) -> bool:
        """``call`` is to be sent again; false: it need not be."""
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

    # --- what a node has said

    def failed(self, link: Link, call: RemoteCall, failure: Failure, clock: int) -> None:
        """A node has answered that it could not, or would not.

        Args:
            link: to that node.
            call: what it was asked.
            failure: its words.
            clock: what it took for the time.
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
        """The node cannot do it now: it is sent again until its deadline, after longer and longer
        pauses, so that those who are refused do not make it worse.
        """
        call.refused = refusal
        pause = min(REFUSED_SECONDS_FIRST * 2.0**call.refusals, LONGEST_REFUSED_SECONDS)
        call.refusals += 1
        self._try_later(call, max(refusal.retry_after, pause))

    def _clock_refused(self, call: RemoteCall, clock: int) -> None:
        """It has begun in the node's future. It begins now, if no other attempt may be done yet: as
        an older one it expires sooner, and its record is looked for, so it can do no harm.
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
            self._pending.queue.append(call)
        self._search.denied(link, Unavailable(failure[1]), leader_address(failure))


__all__ = ["Attempts", "Pauses"]
