"""The calls on their way: into the lane of their range, and from there to the link of its leader.

::

    assign ─▶ lane ── send_queued ──▶ link          if it leads, knows the request, and has room
        └─▶ parts, one for each range ─▶ lanes      of a request for several (:mod:`.spreading`)

A lane whose target has no room for its next call is looked at again when one was answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from postroom.client.routing.awaited_claims import AwaitedClaim, NodeCall
from postroom.client.routing.calls import CallWay, RemoteCall
from postroom.client.routing.changes import awaits_change, nothing_new
from postroom.client.routing.claims import is_claim_that_waits
from postroom.client.routing.lanes import Lane, Lanes
from postroom.client.routing.links import COMPANY_SECONDS, Link
from postroom.client.routing.outcomes import too_many_waits
from postroom.client.routing.search import Search, SearchTimes
from postroom.client.routing.spreading import (
    AwaitedChange,
    PartCall,
    Question,
    Spread,
    is_to_spread,
    needs_present,
)
from postroom.client.routing.tries import FailedTries
from postroom.client.routing.upkeep import HoldingsUpkeep
from postroom.errors import Error
from postroom.limits import CLIENT_WAITS_MAX
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.protocol import requests
from postroom.ranges.requests import Now


class Assignment:
    """The calls on their way; see the module.

    Args:
        lanes: the lanes.
        search: searches for leaders.
        failed_tries: ends calls.
        upkeep: sends calls.
        times: the clock, and the alarm.
        next_number: returns the next number of a request.

    Attributes:
        unsent: the lanes with calls that may be sent when there is room.
        withdraw: withdraws a call, and its parts.
    """

    def __init__(
        self,
        lanes: Lanes,
        search: Search,
        failed_tries: FailedTries,
        upkeep: HoldingsUpkeep,
        times: SearchTimes,
        next_number: Callable[[], int],
    ) -> None:
        self.unsent: dict[Lane, None] = {}
        self.withdraw: Callable[[RemoteCall], None]
        self._lanes = lanes
        self._search = search
        self._failed_tries = failed_tries
        self._upkeep = upkeep
        self._times = times
        self._next_number = next_number

    # --- to lanes

    def assign(self, call: RemoteCall) -> None:
        """Have a call wait in its lane."""
        lane = self._lanes.only or self.lane_of(call)
        if lane is not None:
            lane.append(call)
            self._search.hurry(lane)
            self.unsent[lane] = None

    def lane_of(self, call: RemoteCall) -> Lane | None:
        """Return the lane of a call among several ranges; ``None``: it was spread, or refused."""
        try:
            if needs_present(call, self._lanes):
                self.assign_new(Question(Now(), call, partial(self._has_present, call)))
                return None
            if is_to_spread(call, self._lanes):
                self._spread(call)
                self.send_queued()
                return None
            if type(call) is PartCall and call.range_id:
                return self._lane_by_id(call)
            return self._lanes.of(call)
        except Error as error:
            self._failed_tries.finish(call, error)
            return None

    def _has_present(self, call: RemoteCall, now: Any, error: BaseException | None) -> None:
        """Have a call go on with the greatest clock of all leaseholders."""
        if error is not None:
            self.end(call, None, error)
        else:
            call.request = msgspec.structs.replace(call.request, **{call.request.read_at: now})
            self.assign(call)

    def _spread(self, call: RemoteCall) -> None:
        if awaits_change(call.request):
            self._spread_wait(call, AwaitedChange(call, self), nothing_new)
        elif is_claim_that_waits(call.request):
            self._spread_wait(call, AwaitedClaim(call, self), lambda _: None)
        else:
            Spread(call, self.assign_new, self.end).begin(self._lanes)

    def _spread_wait(
        self,
        call: RemoteCall,
        awaited: AwaitedChange | AwaitedClaim,
        was_split: Callable[[Any], Any],
    ) -> None:
        """Have a call wait at several ranges.

        Args:
            call: the call, or a part of one whose range was split: then all begin anew.
            awaited: begins the wait.
            was_split: returns the answer to such a part.
        """
        if type(call) is PartCall:
            self.end(call, was_split(call.request), None)
            return
        links = {lane.target for lane in self._lanes if lane.target is not None}
        if any(link.waiting() >= CLIENT_WAITS_MAX for link in links):
            raise too_many_waits(CLIENT_WAITS_MAX)
        awaited.begin(self._lanes)

    def _lane_by_id(self, part: PartCall) -> Lane | None:
        """Return the lane of a part that goes to a range by its id; ``None``: it is left out."""
        if part.range_id in self._lanes.by_id:
            return self._lanes.of_range(part, part.range_id)
        if self._lanes.cache.has_gap():
            return self._lanes.of(part)
        self.end(part, None, None)
        return None

    def assign_new(self, call: RemoteCall) -> None:
        """Have a call wait in its lane that is under way in the place of another one."""
        self._number(call)
        self.assign(call)

    def _number(self, call: RemoteCall) -> None:
        """Give a call that is under way in the place of another one a number of its own."""
        call.number = self._next_number()
        if type(call.request) is ClaimQueue and not call.request.again:
            call.request = msgspec.structs.replace(call.request, number=call.number)

    def send_new(self, link: Link, call: RemoteCall) -> None:
        """Send a call on a link that is under way in the place of another one."""
        self._number(call)
        call.way = CallWay()
        self._upkeep.send(link, call)

    def wait_at(self, link: Link) -> None:
        """Have the claims that wait at other nodes wait at one that leads more ranges now."""
        others = [each for each in self._search.links.values() if each is not link]
        calls = [call for each in others for call in (*each.sent.values(), *each.batch)]
        for call in calls:
            if type(call) is NodeCall and not call.done:
                call.awaited.wait_at(link)

    def leave(self, call: RemoteCall) -> None:
        """Have what a claim was given without a waiting caller go back."""
        self._failed_tries.leave(call)
        self._failed_tries.done(call)

    def rest(self, call: RemoteCall) -> None:
        """Withdraw the parts of a call, and send it again after a pause."""
        self.withdraw(call)
        call.waits = call.request.waits()
        self._failed_tries.rest(call)

    def ask_again(self, call: RemoteCall, request: Any) -> None:
        """Withdraw the parts of a call, and send it with another request, which does not wait."""
        call.request = request
        self.begin_again(call)

    def begin_again(self, call: RemoteCall) -> None:
        """Withdraw the parts of a call, and send it again as it is."""
        self._failed_tries.again(call)  # it has a new deadline
        self.withdraw(call)
        call.waits = call.request.waits()
        self.assign(call)

    def end_wait(self, call: RemoteCall, result: Any, error: BaseException | None) -> None:
        """Withdraw the parts of a call, and end it with a result or an error."""
        self.withdraw(call)
        self.end(call, result, error)

    def end(self, call: RemoteCall, result: Any, error: BaseException | None) -> None:
        """End a call."""
        self._failed_tries.done(call)
        call.complete(result, error)

    def return_first(self, calls: list[RemoteCall]) -> None:
        """Put the calls of a lost link before all others, in their order."""
        only = self._lanes.only
        if only is not None:
            only.return_first(calls)
            self.unsent[only] = None
            return
        waiting = self._lanes.take_queue()
        for call in (*calls, *waiting):
            self.assign(call)

    # --- to links

    def send_queued(self) -> None:
        """Send the calls of all lanes whose targets have room."""
        for lane in list(self.unsent):
            self._send_lane(lane)
            if not (lane.queue or lane.commits):
                self.unsent.pop(lane, None)

    def _send_lane(self, lane: Lane) -> None:
        link = lane.target
        while link is not None and (call := lane.next_call(link)) is not None:
            if call.done or self.is_refused(link, call):
                continue
            if call.way is not None and (link.node_id, call.way.named) in call.way.refused:
                self._failed_tries.rest(call)
            else:
                self._upkeep.send(link, call)
        if link is not None and link.commits:
            self.mind_company(link, self._times.monotonic())

    def is_refused(self, link: Link, call: RemoteCall) -> bool:
        """Refuse a call that the node does not know; return whether it was refused.

        The node would end the stream for it.
        """
        if link.revision >= requests.REVISION:
            return False
        failure = requests.refusal(call.request, link.revision)
        if failure is not None:
            self._failed_tries.failed(link, call, failure, 0)
        return failure is not None

    def mind_company(self, link: Link, now: float) -> None:
        """Set the time until which commits wait for company on ``link``."""
        if link.delayed_at == math.inf and not link.commits_may_go():
            link.delayed_at = now
            self._times.arm(now + COMPANY_SECONDS)
