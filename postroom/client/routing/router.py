"""The client's router: finds who leads, and keeps requests going until they are answered.

::

    submit ─▶ lane of its range ─▶ link to its leader ─▶ answered ─▶ complete
                ▲                     │ not the leader · not the range · link lost · no sign of life
                └─────────────────────┘   (again, until its deadline)

The code is plain and synchronous, without a network, a loop or a clock of its own. A shell
(:mod:`postroom.client.remote.connection`) or a simulation moves its frames and calls
:meth:`Router.tick`.

While one range is known there is one lane, which takes all requests (:mod:`.lanes`). :mod:`.search`
finds out who leads a range. Requests go only to a node that says that it leads.

A request that a node could not do, or would not, is sent again until its deadline
(:mod:`.tries`).

*A node that is cut off or stopped* answers nothing. While an answer is awaited, the router asks for
a sign of life every half second. After another second without one it gives up the link.

The leaseholder's memory of this client is lost with the lease, and protections are lost with the
link. Protections are requested again (:mod:`.holdings`); waiting calls are sent again. The
leaseholder keeps what it holds for transactions (locks, claims) while it hears of this client. The
router therefore sends something every second while anything is held or awaited there, whatever the
application does meanwhile.
"""

from __future__ import annotations

import math
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from postroom.client.routing.assignment import Assignment
from postroom.client.routing.calls import HeardClock, Port, RemoteCall
from postroom.client.routing.lanes import Lanes
from postroom.client.routing.links import COMPANY_SECONDS, Link
from postroom.client.routing.outcomes import Outcomes, client_closed, too_many_waits
from postroom.client.routing.search import Addresses, Search, SearchTimes
from postroom.client.routing.tries import FailedTries, PendingCalls, RetryTimes
from postroom.client.routing.upkeep import HoldingsUpkeep
from postroom.client.sender import KnownRanges
from postroom.errors import Unavailable
from postroom.limits import CLIENT_QUEUE_MAX, CLIENT_WAITS_MAX, REQUEST_SECONDS
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.protocol import frames, requests
from postroom.protocol.failures import DeadlineExceeded, WireError, error_from
from postroom.protocol.requests import (
    MALFORMED,
    REQUESTS,
    RESULT_DECODERS,
    not_an_answer,
)
from postroom.ranges.contract import ROOT_ID, UNTIL_IT_HAPPENS, ConcernsNode, Request, Scope
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.requests import CommitTransaction, Unprotect

SWEEP_SECONDS: Final = 0.25
"""The longest delay with which a deadline without a timer of its own is noticed, in seconds."""
WITHDRAWING_SECONDS: Final = 1.0
"""The time for which the node's answer on a withdrawn request is awaited, in seconds."""
LATE_SECONDS: Final = 0.25
"""The delay of ``tick`` that shows that this process was not running, in seconds."""

_UNLIKE_OTHERS: Final = frozenset(
    kind
    for kind in REQUESTS.asked
    if kind.wait_seconds_max == UNTIL_IT_HAPPENS
    or (kind.may_end_unknown and kind is not CommitTransaction)
    or issubclass(kind, ConcernsNode)
    or kind is Unprotect
)


class Router:
    """The client's router.

    Args:
        addresses: those of some nodes, ``host:port``.
        port: the shell.
        monotonic: returns seconds that never go back.
        randomness: for the client's id and for jitter.
        request_seconds: the time after which a request without a time-out of its own ends.

    Attributes:
        client: the id of this client; the ids of its transactions begin with it.
        ranges, range_of, span_of: see ``Sender``.
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
        self._request_seconds = request_seconds
        identity = frames.draw_identity(randomness)
        self.client = identity.client
        self._lanes = Lanes()
        self.ranges: KnownRanges = self._lanes
        self.range_of, self.span_of = self._lanes.range_of, self._lanes.span_of
        times = SearchTimes(monotonic, self._arm)
        self._search = Search(
            self._lanes, self.addresses, port, times, identity.secret, self._is_idle
        )
        self._links = self._search.links
        self._outcomes = Outcomes(
            self.addresses, self._search.newest, self.reading, request_seconds
        )
        self._pending = PendingCalls()
        self._failed_tries = FailedTries(
            self._lanes, self._pending, self._outcomes, self._search, self.clock,
            RetryTimes(monotonic, randomness, request_seconds, self._arm),
        )  # fmt: skip
        self._upkeep = HoldingsUpkeep(
            self._lanes, port, self.clock, monotonic, self.client, self._next_number
        )
        self._assignment = Assignment(
            self._lanes, self._search, self._failed_tries, self._upkeep, times, self._next_number
        )
        self._failed_tries.assign = self._assignment.assign
        self._failed_tries.assign_new = self._assignment.assign_new
        self._assignment.withdraw = self._withdraw
        self._number = 0
        self._sweep_at = math.inf
        self._alarm_at = math.inf
        self._closed = False

    # --- calls of the shell

    def start(self) -> None:
        """Begin to look for the cluster."""
        self._search.start()

    def submit(self, call: RemoteCall) -> None:
        """Accept a request. ``call.complete`` is called once, perhaps before this returns."""
        self._number += 1
        call.number = self._number
        kind = type(call.request)
        seconds = call.timeout_seconds
        now = self._monotonic()
        if kind is CommitTransaction:
            call.is_commit = True
            has_locks = call.request.transaction_id in self._lanes.locking
            call.has_company = call.crowds = not has_locks
        call.deadline = now + (self._request_seconds if seconds is None else seconds)
        if seconds is not None and not call.is_commit:
            self._pending.timed.set(call, call.deadline)
            self._arm(call.deadline)
        if kind in _UNLIKE_OTHERS and self._is_done_otherwise(call, kind):
            return
        if self._sweep_at == math.inf:
            self._sweep_soon(now)
        lane = self._lanes.only
        if lane is None:
            lane = self._assignment.lane_of(call)
            if lane is None:
                return
        link = lane.target
        before = lane.commits if call.crowds else lane.queue
        if link is None or before or not link.has_room(call):
            self._enqueue(call)
        elif (
            link.revision >= requests.REVISION or not self._assignment.is_refused(link, call)
        ) and link.queue(call):
            self._port.output(link.number)
        if link is not None and link.commits and link.delayed_at == math.inf:
            self._assignment.mind_company(link, now)

    def _sweep_soon(self, now: float) -> None:
        """Set the time of the next sweep, since there is a call to look after."""
        self._sweep_at = min(self._sweep_at, now + SWEEP_SECONDS)
        self._arm(self._sweep_at)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def cancel(self, call: RemoteCall) -> None:
        """Cancel a call, whose caller has gone: ``complete`` will not be called."""
        if not call.done:
            self._withdraw(call)
            self._failed_tries.leave(call)
            self._failed_tries.done(call)

    def take(self, link: int) -> bytes | None:
        """Return the next frame for the link; ``None``: nothing, until ``Port.output``."""
        known = self._links.get(link)
        frame = None if known is None else known.take(self.clock.reading())
        if known is not None and frame is not None:
            known.spoke_at = self._monotonic()
        return frame

    def received(self, link: int, frame: bytes) -> None:
        """Handle a frame that has come in."""
        known = self._links.get(link)
        if known is None:
            return
        known.heard(self._monotonic())
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
        """Handle a stream that has ended, or could not be opened."""
        known = self._links.get(link)
        if known is not None:
            self._lost(known, reason)

    def tick(self) -> None:
        """Do what is due (``Port.alarm``)."""
        now = self._monotonic()
        late, self._alarm_at = now > self._alarm_at + LATE_SECONDS, math.inf
        if self._closed:
            return
        for lane in self._lanes:
            lane.holdings.let_go(now)
        for link in self._links.values():
            self._upkeep.note_holdings(link)
        for silent in self._search.silent(now, late=late):
            self._drop(silent, Unavailable("no answer, and no sign of life"))
        self._expire(now)
        while (call := self._pending.next_rested(now)) is not None:
            self._enqueue(call)
        if self._sweep_at <= now:
            self._sweep(now)
        self._search.tick(now)
        self._assignment.send_queued()
        for link in self._links.values():
            if link.end_delay(now):
                self._port.output(link.number)
            if link.commits:
                self._assignment.mind_company(link, now)
        self._arm(self.next_deadline())

    def next_deadline(self) -> float:
        """Return when ``tick`` has something to do."""
        delayed = min((link.delayed_at for link in self._links.values()), default=math.inf)
        first = min(self._search.next_deadline(), self._sweep_at, delayed + COMPANY_SECONDS)
        return self._pending.next_deadline(first)

    def is_quiet(self) -> bool:
        """Return whether all calls under way only wait for something to happen."""
        return all(call.waits or call.done or call.may_stay for call in self._unanswered())

    def close(self) -> None:
        """End everything. Calls that were not answered by now get an error."""
        self._closed = True
        unanswered = [call for call in self._unanswered() if not call.done]
        for number in list(self._links):
            self._port.close(number)
        self._links.clear()
        self._lanes.close()
        for call in unanswered:
            self._failed_tries.finish(call, self._outcomes.cut_off(call, closed=True))

    # --- placing

    def _is_done_otherwise(self, call: RemoteCall, kind: type[Request]) -> bool:
        root = self._lanes.root
        link = root.target
        if kind is ClaimQueue:
            call.request = msgspec.structs.replace(call.request, number=call.number)
        if kind.wait_seconds_max == UNTIL_IT_HAPPENS:
            call.waits = call.request.waits()
            if link is None or link.waiting() < CLIENT_WAITS_MAX:
                return False
            self._failed_tries.finish(call, too_many_waits(CLIENT_WAITS_MAX))
            return True
        if kind is Unprotect:
            root.holdings.unprotect(call.request.timestamp)
            self._upkeep.note_holdings(link)
            if link is None:
                root.holdings.given_back(call.request.timestamp)
                self._failed_tries.done(call)
                call.complete(None, None)
            return link is None
        if link is None and call.request.concerns() is Scope.NODE:
            link = self._search.any_ready()
            if link is not None:
                self._upkeep.send(link, call)
                self._sweep_soon(self._monotonic())
            return link is not None
        call.is_commit = kind.may_end_unknown
        return False

    def _enqueue(self, call: RemoteCall) -> None:
        """Have a call wait in its lane, if there is room."""
        if self._closed:
            self._failed_tries.finish(call, client_closed())
        elif self._lanes.waiting() >= CLIENT_QUEUE_MAX:
            self._failed_tries.finish(call, self._outcomes.queue_full(call, CLIENT_QUEUE_MAX))
        else:
            self._assignment.assign(call)

    # --- answers

    def _on_answers(self, link: Link, message: frames.Answers) -> None:
        self.clock.heard(message.clock)
        if message.lease != link.lease:
            link.lease = message.lease
            if link.lanes:
                self._upkeep.protect_again(link)
        for answer in message.answers:
            call = link.answered(answer.number)
            if call is None:
                continue
            failure = answer.failure
            if failure is None:
                self._on_result(link, call, answer.result)
            elif not call.done:
                self._failed_tries.failed(link, call, failure, message.clock)
        if self._assignment.unsent:
            self._assignment.send_queued()
        if link.commits_may_go() and link.tell():
            self._port.output(link.number)

    def _on_result(self, link: Link, call: RemoteCall, result: Any) -> None:
        kind = type(call.request)
        try:
            answer = RESULT_DECODERS[kind](result)
        except MALFORMED as error:
            link.sent[call.number] = call  # it goes on elsewhere, with all others
            raise not_an_answer(kind, error) from error
        if kind.changes_holdings:
            self._upkeep.answered(link, call, answer)
        if not call.done:
            call.done = True
            if call.timeout_seconds is not None:
                self._pending.timed.cancel(call)
            if self._lanes.only is None:
                self._confirm(call)
            else:
                self.addresses.served()
            call.complete(answer, None)

    def _confirm(self, call: RemoteCall) -> None:
        """Note that a range of several has answered."""
        if not self._search.is_on:  # else a busy range would have another one's leader hurried for
            self.addresses.served()
        if self._lanes.cache.mistakes and call.way is not None:
            self._lanes.cache.confirm(call.way.range_id)

    # --- the leader

    def _on_welcome(self, link: Link, message: frames.Welcome) -> None:
        if message.leader == message.node_id:
            # By another clock than the leaseholder's, a transaction might begin long ago.
            self.clock.heard(message.clock)
        leads = message.leads
        if not leads and message.leader == message.node_id and self._lanes.only is None:
            leads = [RangeDescriptor(ROOT_ID)]  # its store has one range, and another one was told
        if self._lanes.learn(leads, message.node_id, leads=True):
            self._failed_tries.assign_again()
        if self._search.welcomed(link, message):
            self._upkeep.protect_again(link)
            self._assignment.wait_at(link)
        self._assignment.send_queued()

    # --- links that end

    def _drop(self, link: Link, reason: Exception) -> None:
        self._port.close(link.number)
        self._lost(link, reason)

    def _lost(self, link: Link, reason: Exception | None) -> None:
        for call in link.sent.values():
            if call.is_commit:
                call.maybe = True
                call.adrift += ((link.node_id, link.number),)
        calls = [*link.sent.values(), *link.unsent()]
        bound = [call for call in calls if call.is_bound and not call.done]
        for call in bound:
            call.link = None
        unanswered = [
            call for call in calls
            if call.link and self._failed_tries.again(call, forgotten=True)
        ]  # fmt: skip
        self._assignment.return_first(unanswered)
        self._search.lost(link, reason)
        for call in bound:
            call.lost()
        hopeless = self.addresses.hopeless()
        if hopeless is not None and all(lane.target is None for lane in self._lanes):
            for call in self._lanes.take_queue():
                self._failed_tries.finish(
                    call, self._outcomes.unknown(hopeless) if call.maybe else hopeless
                )

    # --- time

    def _is_idle(self) -> bool:
        """Return whether no call waits for a leader, or may yet come back from its link."""
        return not self._lanes.holds() and next(iter(self._unanswered()), None) is None

    def _arm(self, when: float) -> None:
        if when < self._alarm_at:
            self._alarm_at = when
            self._port.alarm(when)

    def _expire(self, now: float) -> None:
        """End the calls whose own time-outs have passed."""
        for call in self._pending.timed.take_due(now):
            if call.done:
                continue
            awaited = self._outcomes.awaited(call)
            self._withdraw(call)
            if call.link is None or call.withdrawn:
                self._failed_tries.leave(call)
                self._failed_tries.finish(call, DeadlineExceeded(awaited))
            else:  # the node may just have answered, or can at once: its answer counts
                call.withdrawn = True
                self._pending.timed.set(call, now + WITHDRAWING_SECONDS)

    def _sweep(self, now: float) -> None:
        """End the calls whose deadlines have passed, and drop those without a caller."""
        unanswered = list(self._unanswered())
        for call in unanswered:
            timed = call.timeout_seconds is not None and not call.is_commit
            if call.deadline <= now and not (call.done or timed):
                self._give_up(call)
        self._lanes.drop_done()
        self._sweep_at = now + SWEEP_SECONDS if unanswered else math.inf

    def _give_up(self, call: RemoteCall) -> None:
        error = self._outcomes.cut_off(call, closed=self._closed)
        self._withdraw(call)
        self._failed_tries.leave(call)
        self._failed_tries.finish(call, error)

    def _withdraw(self, call: RemoteCall) -> None:
        link = call.link
        if link is not None and link.number in self._links and link.withdraw(call):
            self._port.output(link.number)
        if call.way is not None:
            for part in call.way.parts:
                self.cancel(part)

    def _unanswered(self) -> Iterable[RemoteCall]:
        for link in self._links.values():
            yield from link.sent.values()
            yield from link.unsent()
        yield from self._lanes.calls()
        yield from self._pending
