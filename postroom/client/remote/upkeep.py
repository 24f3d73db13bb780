"""What the router says for itself, so that the leaseholder's memory of this client is as it should.

:mod:`.holdings` knows what is held. Here is what is done about it: protections are asked for again
when the leaseholder may have forgotten them; what nobody waits for any more is taken back; and the
link is told whether anything is held, so that it says something every second.
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
from postroom.protocol.identities import FIRST_NUMBER
from postroom.ranges.requests import (
    CommitTransaction,
    GetForUpdate,
    Protect,
    ReleaseLocks,
    Unprotect,
)

GIVING_BACK: Final = FIRST_NUMBER + (1 << 62)
"""From here on the router numbers transactions of its own."""

OF_HOLDINGS: Final = frozenset({
    ClaimQueue, CommitTransaction, GetForUpdate, Protect, ReapQueue, ReleaseLocks,
})  # fmt: skip
"""The requests whose answers change what is held."""


class Upkeep:
    """See the module.

    Args:
        holdings: what is held for this client.
        port: the shell.
        clock: the nodes', as far as it was heard.
        monotonic: seconds that never go back.
        client: what this client is known by.
        next_number: of a request.
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

    def mark(self, link: Link | None) -> None:
        """The link learns whether anything is held."""
        if link is not None:
            link.holds = bool(self._holdings)

    def place(self, link: Link, call: RemoteCall) -> None:
        """Send a call of a client on a link, behind what must go first."""
        is_news = False
        if call.was_sent and type(call.request) is ReapQueue:
            # What an answer that was lost took for the transaction, nobody could take now.
            is_news = link.place(self._own(ReleaseLocks(call.request.transaction_id)))
        elif call.was_sent and type(call.request) is ClaimQueue:
            lost_claims.ask_again(call)
        if link.place(call) or is_news:
            self._port.output(link.number)

    def _own(self, request: Any) -> UpkeepCall:
        call = UpkeepCall(request)
        call.number = self._next_number()
        call.deadline = math.inf
        return call

    def protect_again(self, link: Link) -> None:
        """The leaseholder's memory of this client is gone, or another node's.

        Or it is not: this is called when a node says that it leads, and again with its first answer
        under a lease. A timestamp that is protected twice would be so for as long as the stream
        lasts, so it is taken back first; of what it does not protect, the node ignores that.
        """
        self.mark(link)
        moments = list(self._holdings.protected())
        for again in (Unprotect, Protect):
            for moment in moments:
                self.place(link, self._own(again(moment)))

    def answered(self, link: Link, call: RemoteCall, answer: Any) -> None:
        """A request of ``OF_HOLDINGS`` was done: what is held now."""
        kind = type(call.request)
        if kind is Protect:
            self._protected(link, call, answer)
        elif kind is ClaimQueue:
            self._claimed(link, call, answer)
        else:
            self._holdings.answered(call.request, answer, self._monotonic())
            self.mark(link)

    def _protected(self, link: Link, call: RemoteCall, moment: int) -> None:
        if call.done:
            if link.place(self._own(Unprotect(moment))):
                self._port.output(link.number)
        elif type(call) is not UpkeepCall:
            self._holdings.protect(moment)
            link.holds = True

    def _claimed(self, link: Link, call: RemoteCall, answer: Claimed) -> None:
        """Messages are this client's while the leaseholder hears of it; nobody's, if nobody waits
        for them any more.
        """
        now, is_wanted = self._monotonic(), not call.done and type(call) is not UpkeepCall
        if is_wanted or call.request.transaction_id is not None:
            self._holdings.claimed(answer, self._clock.reading(), now)
            self.mark(link)
            return
        own_id = self._client + (GIVING_BACK + self._next_number()).to_bytes(8, "big")
        request = given_back(own_id, self._clock.reading(), call.request, answer)
        if request is not None and link.place(self._own(request)):
            self._port.output(link.number)


__all__ = ["OF_HOLDINGS", "Upkeep"]
