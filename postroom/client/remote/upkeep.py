"""The router's own requests, which keep the leaseholder's memory of this client right.

:mod:`.holdings` knows what is held. This module requests protections again when the leaseholder may
have forgotten them. It gives back messages without a waiting caller. It tells the link whether
anything is held, so that the link sends something every second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from postroom.client.remote import lost_claims
from postroom.client.remote.calls import Port, RemoteCall, UpkeepCall
from postroom.client.remote.heard_clock import HeardClock
from postroom.client.remote.holdings import Holdings
from postroom.client.remote.link import Link
from postroom.client.sender import given_back
from postroom.messaging.queues.requests import Claimed, ClaimQueue
from postroom.messaging.requests import ReapQueue
from postroom.ranges.requests import Protect, ReleaseLocks, Unprotect

GIVING_BACK: Final = 1 << 62
"""The first number of the router's own transactions."""


class HoldingsUpkeep:
    """The router's own requests.

    Args:
        holdings: what is held for this client.
        port: the shell.
        clock: the nodes' clock, as far as it was heard.
        monotonic: returns seconds that never go back.
        client: the id of this client.
        next_number: returns the next number of a request.
    """

    def __init__(
        self,
        holdings: Holdings,
        port: Port,
        clock: HeardClock,
        monotonic: Callable[[], float],
        client: bytes,
        next_number: Callable[[], int],
    ) -> None:
        self._holdings = holdings
        self._port = port
        self._clock = clock
        self._monotonic = monotonic
        self._client = client
        self._next_number = next_number

    def note_holdings(self, link: Link | None) -> None:
        """Tell the link whether anything is held."""
        if link is not None:
            link.holds = bool(self._holdings)

    def send(self, link: Link, call: RemoteCall) -> None:
        """Send a call of a client on a link, after the requests that must go first."""
        is_news = False
        if call.was_sent and type(call.request) is ReapQueue:
            # No caller could reap now what a lost answer has reaped for the transaction.
            is_news = link.queue(self._own(ReleaseLocks(call.request.transaction_id)))
        elif call.was_sent and type(call.request) is ClaimQueue:
            lost_claims.ask_again(call)
        if link.queue(call) or is_news:
            self._port.output(link.number)

    def _own(self, request: Any) -> UpkeepCall:
        call = UpkeepCall(request)
        call.number = self._next_number()
        call.deadline = math.inf
        return call

    def protect_again(self, link: Link) -> None:
        """Request the protections again: the leaseholder may have lost its memory of this client.

        It may also have kept it: this is called when a node says that it leads, and again with its
        first answer under a lease. A timestamp that is protected twice would stay protected for as
        long as the stream lasts. Each protection is therefore first taken back; the node ignores
        this for a timestamp that it does not protect.
        """
        self.note_holdings(link)
        timestamps = list(self._holdings.protected())
        for again in (Unprotect, Protect):
            for timestamp in timestamps:
                self.send(link, self._own(again(timestamp)))

    def answered(self, link: Link, call: RemoteCall, answer: Any) -> None:
        """Note what is held now, by the answer to a request that ``changes_holdings``."""
        kind = type(call.request)
        if kind is Protect:
            self._protected(link, call, answer)
        elif kind is ClaimQueue:
            self._claimed(link, call, answer)
        else:
            self._holdings.answered(call.request, answer, self._monotonic())
            self.note_holdings(link)

    def _protected(self, link: Link, call: RemoteCall, timestamp: int) -> None:
        if call.done:
            if link.queue(self._own(Unprotect(timestamp))):
                self._port.output(link.number)
        elif type(call) is not UpkeepCall:
            self._holdings.protect(timestamp)
            link.holds = True

    def _claimed(self, link: Link, call: RemoteCall, answer: Claimed) -> None:
        """Note the messages of a claim; give them back if no caller waits for them any more.

        They belong to this client while the leaseholder hears of it.
        """
        now, is_wanted = self._monotonic(), not call.done and type(call) is not UpkeepCall
        if is_wanted or call.request.transaction_id is not None:
            self._holdings.claimed(answer, now)
            self.note_holdings(link)
            return
        own_id = self._client + (GIVING_BACK + self._next_number()).to_bytes(8, "big")
        request = given_back(own_id, self._clock.reading(), call.request, answer)
        if request is not None and link.queue(self._own(request)):
            self._port.output(link.number)


__all__ = ["HoldingsUpkeep"]
