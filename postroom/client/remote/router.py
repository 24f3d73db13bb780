"""The client's router: finds who leads, and keeps requests going until they are answered.

::

    submit ─▶ queue ─▶ link to the leader ─▶ answered ─▶ complete
                ▲            │ not the leader · link lost · no sign of life
                └────────────┘   (again, until its deadline)

Plain synchronous code, without a network, a loop or a clock of its own: a shell
(:mod:`.connection`) or a simulation moves its frames and calls :meth:`Router.tick`.

Who leads is found out by :mod:`.search`. Requests go only to a node that says that it does.

*A node that has too much to do*, or no room, refuses: the request is sent again, with a back-off,
until its deadline.

*What may be sent again*: everything. Reads and waits do no harm; a commit that was sent before is
recognised by its transaction's id and answered as the first time. If there is no plain answer,
:mod:`.outcomes` decides what is said.

*A node that is cut off or stopped* answers nothing: while something is awaited, a sign of life is
asked for every half second, and after another second without one the link is given up.

What the leaseholder keeps in memory for this client goes with the lease, and protections go with
the link: they are asked for again; whoever waits asks again. It keeps what it holds for
transactions (locks, claims) while it hears of this client. So something is said every second while
anything is held or awaited there, whatever the application does meanwhile.
"""

from __future__ import annotations

import math
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable
from typing import Any, Final

from postroom.client.remote import lost_claims
from postroom.client.remote.addresses import Addresses
from postroom.client.remote.calls import Port, RemoteCall, UpkeepCall
from postroom.client.remote.heard_clock import HeardClock
from postroom.client.remote.holdings import Holdings
from postroom.client.remote.link import Link
from postroom.client.remote.outcomes import (
    Outcomes,
    client_closed,
    clock_is_behind,
    too_many_waits,
)
from postroom.client.remote.pending import PendingCalls
from postroom.client.remote.search import Search
from postroom.client.sender import REFUSED_SECONDS_FIRST, REFUSED_SECONDS_MAX, given_back
from postroom.errors import CommitUnknown, Unavailable
from postroom.limits import REQUEST_SECONDS
from postroom.messaging.queues.requests import Claimed, ClaimQueue
from postroom.messaging.requests import AwaitQuiet, ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import (
    CLOCK_AHEAD,
    NOT_LEASEHOLDER,
    WITHDRAWN,
    DeadlineExceeded,
    Failure,
    WireError,
    error_from,
    leader_address,
)
from postroom.protocol.requests import DescribeNode, decode_result
from postroom.ranges.nodes import RebindNode, RetireNode
from postroom.ranges.requests import (
    CLIENT_ID_BYTES,
    CommitTransaction,
    GetForUpdate,
    Protect,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
)

QUEUE_MAX: Final = 10_000
WAITS_MAX: Final = 10_000
"""How many requests may wait here for a leader, and at nodes for something to happen."""
SWEEP_SECONDS: Final = 0.25
"""How late a deadline without a time of its own may be noticed."""
WITHDRAWING_SECONDS: Final = 1.0
"""How long the node's word on a withdrawn request is awaited."""
GIVING_BACK: Final = 1 << 62
"""From here on the router numbers transactions of its own."""
LATE_SECONDS: Final = 0.25
"""If ``tick`` is called so much too late, this process was not running."""

_MAY_WAIT: Final = frozenset({AwaitQuiet, ClaimQueue, GetForUpdate, ReapQueue, ScanChanges})
_OF_TRANSACTIONS: Final = frozenset({CommitTransaction, GetForUpdate, ReapQueue, ReleaseLocks})
_UNLIKE_OTHERS: Final = frozenset({*_MAY_WAIT, Unprotect, RetireNode, RebindNode, DescribeNode})


class Router:
    """See the module.

    Args:
        addresses: of some nodes, ``host:port``.
        port: the shell.
        monotonic: seconds that never go back.
        randomness: for the client's id and for jitter.
        request_seconds: after which a request without a time-out of its own ends.

    Attributes:
        client: what this client is known by; the ids of its transactions begin with it.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        port: Port,
        monotonic: Callable[[], float],
        randomness: random.Random,
        *,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self.addresses = Addresses(addresses, randomness)
        self.clock = HeardClock(monotonic)
        self.reading = self.clock.reading
        self._port = port
        self._monotonic = monotonic
        self._random = randomness
        self._request_seconds = request_seconds
        self.client = randomness.randbytes(CLIENT_ID_BYTES)
        self._search = Search(
            self.addresses, port, monotonic, self.client, self._arm, self._is_idle
        )
        self._links = self._search.links
        self._outcomes = Outcomes(
            self.addresses, self._search.newest, self.reading, request_seconds
        )
        self._pending = PendingCalls()
        self._holdings = Holdings()
        self._number = 0
        self._sweep_at = math.inf
        self._alarm_at = math.inf
        self._closed = False

    # --- what the shell calls

    def start(self) -> None:
        """Begin to look for the cluster."""
        self._search.start()

    def submit(self, call: RemoteCall) -> None:
        """Take a request. ``call.complete`` is called once, perhaps before this returns."""
        self._number += 1
        call.number = self._number
        kind = type(call.request)
        seconds = call.timeout_seconds
        now = self._monotonic()
        call.is_commit = kind is CommitTransaction
        call.deadline = now + (self._request_seconds if seconds is None else seconds)
        if seconds is not None and not call.is_commit:
            self._pending.timed.set(call, call.deadline)
            self._arm(call.deadline)
        if kind in _UNLIKE_OTHERS and self._is_done_otherwise(call, kind):
            return
        if self._sweep_at == math.inf:
            self._sweep_at = now + SWEEP_SECONDS
            self._arm(self._sweep_at)
        link = self._search.target
        if (
            link is None
            or self._pending.queue
            or (link.open >= link.requests_max and not call.waits)
        ):
            self._enqueue(call)
        elif link.place(call):
            self._port.output(link.number)

    def cancel(self, call: RemoteCall) -> None:
        """Nobody wants the answer any more: ``complete`` will not be called."""
        if not call.done:
            self._withdraw(call)
            self._done(call)

    def take(self, link: int) -> bytes | None:
        """The next frame to write to the link; ``None``: nothing, until ``Port.output``."""
        known = self._links.get(link)
        frame = None if known is None else known.take(self.clock.reading())
        if known is not None and frame is not None:
            known.spoke_at = self._monotonic()
        return frame

    def received(self, link: int, frame: bytes) -> None:
        """A frame has come in."""
        known = self._links.get(link)
        if known is None:
            return
        known.heard_at = self._monotonic()
        known.asked_at = 0.0
        try:
            message = frames.from_node(frame)
            if type(message) is frames.Answers:
                self._on_answers(known, message)
            elif type(message) is frames.Welcome:
                self._on_welcome(known, message)
            elif type(message) is frames.Goodbye:
                self._drop(known, error_from(message.failure))
        except WireError as error:
            self._drop(known, error)

    def disconnected(self, link: int, reason: Exception | None) -> None:
        """The stream has ended, or could not be opened."""
        known = self._links.get(link)
        if known is not None:
            self._lost(known, reason)

    def tick(self) -> None:
        """It may be time for something (``Port.alarm``)."""
        now = self._monotonic()
        late, self._alarm_at = now > self._alarm_at + LATE_SECONDS, math.inf
        if self._closed:
            return
        self._holdings.let_go(now)
        self._mark_holding(self._search.target)
        for silent in self._search.silent(now, late=late):
            self._drop(silent, Unavailable("no answer, and no sign of life"))
        self._expire(now)
        while (call := self._pending.next_rested(now)) is not None:
            self._enqueue(call)
        if self._sweep_at <= now:
            self._sweep(now)
        self._search.tick(now)
        self._place_queued()
        self._arm(self.next_deadline())

    def next_deadline(self) -> float:
        """When ``tick`` has something to do."""
        return self._pending.next_deadline(min(self._search.next_deadline(), self._sweep_at))

    def is_quiet(self) -> bool:
        """Whether nothing is under way but what waits for something to happen."""
        return all(call.waits or call.done or call.may_stay for call in self._unanswered())

    def close(self) -> None:
        """End everything. What was not answered by now gets an error."""
        self._closed = True
        self._search.target = None
        unanswered = [call for call in self._unanswered() if not call.done]
        for number in list(self._links):
            self._port.close(number)
        self._links.clear()
        self._pending.queue.clear()
        for call in unanswered:
            self._finish(call, self._outcomes.cut_off(call, closed=True))

    # --- placing

    def _is_done_otherwise(self, call: RemoteCall, kind: type) -> bool:
        link = self._search.target
        if kind is ClaimQueue:
            lost_claims.number(call)
        if kind in _MAY_WAIT:
            call.waits = getattr(call.request, "wait", True)
            if link is None or link.waiting() < WAITS_MAX:
                return False
            self._finish(call, too_many_waits(WAITS_MAX))
            return True
        if kind is Unprotect:
            self._holdings.unprotect(call.request.timestamp)
            self._mark_holding(link)
            if link is None:  # whoever leads next does not know of it
                self._done(call)
                call.complete(None, None)
            return link is None
        if kind is DescribeNode and link is None:
            link = self._search.any_ready()
            if link is not None:
                self._place(link, call)
            return link is not None
        call.is_commit = kind is RetireNode or kind is RebindNode
        return False

    def _enqueue(self, call: RemoteCall) -> None:
        if self._closed:
            self._finish(call, client_closed())
        elif len(self._pending.queue) >= QUEUE_MAX:
            self._finish(call, self._outcomes.queue_full(call, QUEUE_MAX))
        else:
            self._pending.queue.append(call)
            self._search.hurry()

    def _place_queued(self) -> None:
        link, queue = self._search.target, self._pending.queue
        while queue and link is not None:
            call = queue[0]
            if not (call.done or call.waits) and link.open >= link.requests_max:
                return
            queue.popleft()
            if not call.done:
                self._place(link, call)

    def _place(self, link: Link, call: RemoteCall) -> None:
        is_news = False
        if call.was_sent and type(call.request) is ReapQueue:
            # What an answer that was lost took for the transaction, nobody could take now.
            is_news = link.place(self._upkeep(ReleaseLocks(call.request.transaction_id)))
        elif call.was_sent and type(call.request) is ClaimQueue:
            lost_claims.ask_again(call)
        if link.place(call) or is_news:
            self._port.output(link.number)

    def _upkeep(self, request: Any) -> UpkeepCall:
        return self._own(UpkeepCall(request))

    def _own(self, call: UpkeepCall) -> UpkeepCall:
        self._number += 1
        call.number = self._number
        call.deadline = math.inf
        return call

    def _again(self, call: RemoteCall) -> bool:
        """``call`` is to be sent again; false: it need not be."""
        call.link = None
        if type(call) is UpkeepCall:
            return type(call.request) in lost_claims.LASTING
        left = lost_claims.left_behind(call) if call.done or call.withdrawn else None
        if left is not None:
            self._pending.queue.append(self._own(left))
        if call.done:
            return False
        if call.withdrawn:
            self._finish(call, DeadlineExceeded())
            return False
        if type(call.request) is Unprotect:
            self._done(call)
            call.complete(None, None)
            return False
        if call.waits and call.timeout_seconds is None:
            call.deadline = self._monotonic() + self._request_seconds
        return True

    # --- answers

    def _on_answers(self, link: Link, message: frames.Answers) -> None:
        self.clock.heard(message.clock)
        if message.lease != link.lease:
            link.lease = message.lease
            if link is self._search.target:
                self._protect_again(link)
        for answer in message.answers:
            call = link.answered(answer.number)
            if call is None:
                continue
            failure = answer.failure
            if failure is None:
                self._on_result(link, call, answer.result)
            elif not call.done:
                self._on_failure(link, call, failure, message.clock)
        if self._pending.queue:
            self._place_queued()
        if link.commits_may_go() and link.tell():
            self._port.output(link.number)

    def _on_result(self, link: Link, call: RemoteCall, result: Any) -> None:
        kind = type(call.request)
        try:
            answer = decode_result(kind, result)
        except WireError:
            link.sent[call.number] = call  # it goes on elsewhere, with all others
            raise
        if kind is Protect:
            self._on_protected(link, call, answer)
        elif kind is ClaimQueue:
            self._on_claimed(link, call, answer)
        elif kind in _OF_TRANSACTIONS:
            self._holdings.answered(call.request, answer, self._monotonic())
            self._mark_holding(link)
        if not call.done:
            self._done(call)
            self.addresses.served()
            call.complete(answer, None)

    def _on_protected(self, link: Link, call: RemoteCall, moment: int) -> None:
        if call.done:
            if link.place(self._upkeep(Unprotect(moment))):
                self._port.output(link.number)
        elif type(call) is not UpkeepCall:
            self._holdings.protect(moment)
            link.holds = True

    def _on_claimed(self, link: Link, call: RemoteCall, answer: Claimed) -> None:
        """Messages are this client's while the leaseholder hears of it; nobody's, if nobody waits
        for them any more.
        """
        now, is_wanted = self._monotonic(), not call.done and type(call) is not UpkeepCall
        if is_wanted or call.request.transaction_id is not None:
            self._holdings.claimed(answer, self.clock.reading(), now)
            self._mark_holding(link)
            return
        self._number += 1
        own_id = self.client + (GIVING_BACK + self._number).to_bytes(8, "big")
        request = given_back(own_id, self.clock.reading(), call.request, answer)
        if request is not None and link.place(self._upkeep(request)):
            self._port.output(link.number)

    def _mark_holding(self, link: Link | None) -> None:
        if link is not None:
            link.holds = bool(self._holdings)

    def _on_failure(self, link: Link, call: RemoteCall, failure: Failure, clock: int) -> None:
        name = failure[0]
        if name == NOT_LEASEHOLDER:
            self._on_redirect(link, call, failure)
        elif name == WITHDRAWN or call.withdrawn:
            self._finish(call, DeadlineExceeded())
        elif name == CLOCK_AHEAD:
            self.clock.refused(clock)
            call.refused = clock_is_behind()
            call.refusals += 1
            self._try_later(call, 0.05)
        elif name == CommitUnknown.__name__ and self._outcomes.may_be_told_yet(call):
            call.maybe = True
            self._try_later(call, 0.02)
        else:
            error = error_from(failure)
            if isinstance(error, Unavailable):
                self._on_refusal(call, error)
            else:
                self._finish(call, self._outcomes.failed(call, error))

    def _on_refusal(self, call: RemoteCall, refusal: Unavailable) -> None:
        """The node cannot do it now: it is sent again until its deadline, after longer and longer
        pauses, so that those who are refused do not make it worse.
        """
        call.refused = refusal
        pause = min(REFUSED_SECONDS_FIRST * 2.0**call.refusals, REFUSED_SECONDS_MAX)
        call.refusals += 1
        self._try_later(call, max(refusal.retry_after, pause))

    def _on_redirect(self, link: Link, call: RemoteCall, failure: Failure) -> None:
        if self._again(call):
            self._pending.queue.append(call)
        self._search.denied(link, Unavailable(failure[1]), leader_address(failure))

    def _try_later(self, call: RemoteCall, seconds: float) -> None:
        if self._again(call):
            when = self._monotonic() + seconds * self._random.uniform(0.5, 1.0)
            self._pending.pause(call, when)
            self._arm(when)

    def _finish(self, call: RemoteCall, error: BaseException) -> None:
        self._done(call)
        if type(call.request) is CommitTransaction:
            self._holdings.ended(call.request.transaction_id)
        call.complete(None, error)

    def _done(self, call: RemoteCall) -> None:
        call.done = True
        if call.timeout_seconds is not None:
            self._pending.timed.cancel(call)

    # --- who leads

    def _on_welcome(self, link: Link, message: frames.Welcome) -> None:
        if message.leader == message.node_id:
            # By another clock than the leaseholder's, a transaction might begin long ago.
            self.clock.heard(message.clock)
        if self._search.welcomed(link, message):
            self._protect_again(link)
            self._place_queued()

    def _protect_again(self, link: Link) -> None:
        """The leaseholder's memory of this client is gone, or another node's.

        Or it is not: this is called when a node says that it leads, and again with its first answer
        under a lease. A timestamp that is protected twice would be so for as long as the stream
        lasts, so it is taken back first; of what it does not protect, the node ignores that.
        """
        self._mark_holding(link)
        moments = list(self._holdings.protected())
        for again in (Unprotect, Protect):
            for moment in moments:
                self._place(link, self._upkeep(again(moment)))

    # --- links that end

    def _drop(self, link: Link, reason: Exception) -> None:
        self._port.close(link.number)
        self._lost(link, reason)

    def _lost(self, link: Link, reason: Exception | None) -> None:
        for call in link.sent.values():
            if call.is_commit:
                call.maybe = True
                call.adrift.append((link.node_id, link.number))
        unanswered = [call for call in (*link.sent.values(), *link.unsent()) if self._again(call)]
        self._pending.return_first(unanswered)
        self._search.lost(link, reason)
        hopeless = self.addresses.hopeless()
        if hopeless is not None and self._search.target is None:
            for call in self._pending.take_queue():
                self._finish(call, self._outcomes.unknown(hopeless) if call.maybe else hopeless)

    # --- time

    def _is_idle(self) -> bool:
        return not (self._pending.queue or self._holdings)

    def _arm(self, when: float) -> None:
        if when < self._alarm_at:
            self._alarm_at = when
            self._port.alarm(when)

    def _expire(self, now: float) -> None:
        """What had a time-out of its own."""
        for call in self._pending.timed.take_due(now):
            if call.done:
                continue
            self._withdraw(call)
            if call.link is None or call.withdrawn:
                self._finish(call, DeadlineExceeded())
            else:  # the node may just have answered, or can at once: its word counts
                call.withdrawn = True
                self._pending.timed.set(call, now + WITHDRAWING_SECONDS)

    def _sweep(self, now: float) -> None:
        """What had not, and those in the queue that nobody waits for any more."""
        unanswered = list(self._unanswered())
        for call in unanswered:
            timed = call.timeout_seconds is not None and not call.is_commit
            if call.deadline <= now and not (call.done or timed):
                self._give_up(call)
        self._pending.drop_done()
        self._sweep_at = now + SWEEP_SECONDS if unanswered else math.inf

    def _give_up(self, call: RemoteCall) -> None:
        error = self._outcomes.cut_off(call, closed=self._closed)
        self._withdraw(call)
        self._finish(call, error)

    def _withdraw(self, call: RemoteCall) -> None:
        link = call.link
        if link is not None and link.number in self._links and link.withdraw(call):
            self._port.output(link.number)

    def _unanswered(self) -> Iterable[RemoteCall]:
        for link in self._links.values():
            yield from link.sent.values()
            yield from link.unsent()
        yield from self._pending


__all__ = ["REQUEST_SECONDS", "Port", "RemoteCall", "Router"]
