"""The router's own requests, which keep the leaseholders' memory of this client right.

They request protections again when the leaseholder may have forgotten them, and give back messages
without a waiting caller. A message must not be held without a caller when the answer to a claim is
lost::

    claim, number 7 ──▶ leased ── answer ──✗ the stream broke
         │ a caller waits yet ──▶ the same claim *again* ──▶ what it holds, or else as any claim
         └ none does ───────────▶ again, for nothing more ─▶ what it holds ─▶ given back, uncounted

The number of a claim is stored with its leases, so this works after a change of leader.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

from postroom.client.routing.calls import CallWay, HeardClock, Port, RemoteCall, UpkeepCall
from postroom.client.routing.lanes import Lane, Lanes
from postroom.client.routing.links import Link
from postroom.client.routing.spreading import PartCall
from postroom.client.sender import given_back
from postroom.messaging.queues.claim_requests import Claimed, ClaimQueue
from postroom.messaging.queues.requests import Extend
from postroom.messaging.requests import ReapQueue
from postroom.ranges.requests import CommitTransaction, Protect, ReleaseLocks, Unprotect
from postroom.ranges.whole_protections import ProtectWhole, ReleaseWhole

GIVING_BACK: Final = 1 << 62
"""The first number of the router's own transactions."""


class HoldingsUpkeep:
    """The router's own requests.

    Args:
        lanes: know what is held for this client.
        port: the shell.
        clock: the nodes' clock, as far as it was heard.
        monotonic: returns seconds that never go back.
        client: the id of this client.
        next_number: returns the next number of a request.
    """

    def __init__(
        self,
        lanes: Lanes,
        port: Port,
        clock: HeardClock,
        monotonic: Callable[[], float],
        client: bytes,
        next_number: Callable[[], int],
    ) -> None:
        self._lanes = lanes
        self._port = port
        self._clock = clock
        self._monotonic = monotonic
        self._client = client
        self._next_number = next_number

    def note_holdings(self, link: Link | None) -> None:
        """Tell the link whether anything is held."""
        if link is not None:
            link.holds = any(lane.holdings for lane in link.lanes)

    def send(self, link: Link, call: RemoteCall) -> None:
        """Send a call of a client on a link, after the requests that must go first."""
        is_news = False
        if call.was_sent and type(call.request) is ReapQueue:
            # No caller could reap now what a lost answer has reaped for the transaction.
            release = ReleaseLocks(call.request.transaction_id)
            is_news = link.queue(self._own(release, call.way))
        elif call.was_sent and type(call.request) is ClaimQueue:
            call.request = msgspec.structs.replace(call.request, again=True)
        if link.queue(call) or is_news:
            self._port.output(link.number)

    def _own(self, request: Any, way: CallWay | None = None) -> UpkeepCall:
        call = UpkeepCall(request)
        call.way = way
        call.number = self._next_number()
        call.deadline = math.inf
        return call

    def protect_again(self, link: Link) -> None:
        """Request the protections again: the leaseholder may have lost its memory of this client.

        It may also have kept it: this is called when a node says that it leads, and again with its
        first answer under a lease. A timestamp that is protected twice would stay protected for as
        long as the stream lasts. Each protection is therefore first taken back; the node ignores
        this for a timestamp that it does not protect. Those that were given back while nobody led
        are taken back, too.
        """
        self.note_holdings(link)
        timestamps = [each for lane in link.lanes for each in lane.holdings.protected()]
        given_back = [each for lane in link.lanes for each in lane.holdings.take_given_back()]
        for again, some in ((Unprotect, given_back + timestamps), (Protect, timestamps)):
            for timestamp in some:
                self.send(link, self._own(again(timestamp)))

    def answered(self, link: Link, call: RemoteCall, answer: Any) -> None:
        """Note what is held now, by the answer to a request that ``changes_holdings``."""
        only = self._lanes.only
        lane = self._lanes.of_sent(call) if only is None else only
        kind = type(call.request)
        if kind is Protect:
            self._protected(link, lane, call, answer)
        elif kind is ProtectWhole:
            self._protected_whole(link, lane, call)
        elif kind is ClaimQueue:
            self._claimed(link, lane, call, answer)
        elif kind is not CommitTransaction or lane.holdings or _extends(call.request):
            lane.holdings.answered(call.request, answer, self._monotonic())
            self.note_holdings(link)
        if only is None and kind is CommitTransaction:
            self._release_elsewhere(lane, call.request.transaction_id)

    def _protected(self, link: Link, lane: Lane, call: RemoteCall, timestamp: int) -> None:
        if call.done:
            if link.queue(self._own(Unprotect(timestamp), call.way)):
                self._port.output(link.number)
        elif type(call) is not UpkeepCall:
            lane.holdings.protect(timestamp)
            link.holds = True

    def _protected_whole(self, link: Link, lane: Lane, call: RemoteCall) -> None:
        """Note that the client needs a range as a whole, or give that back."""
        if not call.is_unwanted:
            lane.holdings.protect_whole(call.request.at)
            link.holds = True
        elif link.queue(self._own(ReleaseWhole(call.request.at), call.way)):
            self._port.output(link.number)

    def _claimed(self, link: Link, lane: Lane, call: RemoteCall, answer: Claimed) -> None:
        """Note the messages of a claim; give them back if no caller waits for them any more.

        They belong to this client while the leaseholder hears of it. Those of a transaction go back
        with that, unless another range has given it messages instead.
        """
        of = call.request.transaction_id
        if answer.asked is not None and call.is_bound:
            lane = self._lanes.at(answer.asked[0])
        if not call.is_unwanted or (of is not None and not isinstance(call, PartCall)):
            lane.holdings.claimed(answer, of, self._monotonic())
            self.note_holdings(link)
            return
        own_id = self._client + (GIVING_BACK + self._next_number()).to_bytes(8, "big")
        request = given_back(own_id, self._clock.reading(), call.request, answer)
        if request is not None and link.queue(self._own(request, call.way)):
            self._port.output(link.number)

    def _release_elsewhere(self, anchor: Lane, transaction_id: bytes) -> None:
        """Release what a committed transaction holds at other ranges than its anchor's."""
        for lane in self._lanes:
            if lane is not anchor and lane.holdings.holds_for(transaction_id):
                lane.holdings.ended(transaction_id)
                if lane.target is not None:
                    way = CallWay()
                    self._lanes.direct(way, lane)
                    self.send(lane.target, self._own(ReleaseLocks(transaction_id), way))
                    self.note_holdings(lane.target)


def _extends(request: CommitTransaction[Any]) -> bool:
    """Return whether a commit makes leases longer: then its client holds messages."""
    return Extend in map(type, request.writes)


RELEASES = (ReleaseLocks, ReleaseWhole)
"""The types of the router's own requests that are sent again if a node refuses them.

They end with the link: the node frees what they would have freed.
"""
LASTING = (ClaimQueue, CommitTransaction)
"""The types of the router's own requests that are sent until they are answered.

These find messages that are held without a caller, and give them back.
"""


class LeftBehind(UpkeepCall):
    """A request that replaces a lost claim without a caller.

    Args:
        request: the request.
        ended: called when it is answered.
    """

    __slots__ = ("_ended",)

    def __init__(self, request: ClaimQueue, ended: Callable[[], None]) -> None:
        super().__init__(request)
        self._ended = ended

    def complete(self, result: Any, error: BaseException | None) -> None:
        """Tell that it has ended. The messages have gone back."""
        self._ended()


def left_behind(call: RemoteCall, ended: Callable[[], None]) -> LeftBehind | None:
    """Return the request that replaces a lost claim without a caller; ``None``: none is needed.

    Args:
        call: the claim.
        ended: called when the request is answered.
    """
    request = call.request
    if type(request) is not ClaimQueue or not call.was_sent or isinstance(call, UpkeepCall):
        return None
    if request.transaction_id is not None:
        return None  # its messages are freed with its transaction
    asked = msgspec.structs.replace(request, messages_max=0, wait=False, again=True, at_node=False)
    left = LeftBehind(asked, ended)
    left.number, left.deadline, left.was_sent = call.number, math.inf, True
    return left
