"""The things that the leaseholder holds in memory for this client, as far as the client knows.

While there are any, the router sends something every second (:mod:`.links`). Otherwise the
leaseholder would take this client for dead, and free them. Protections end with their link, and are
requested again; locks and claims stay for a few seconds without a link. If a transaction is neither
committed nor rolled back, the leaseholder frees what it holds when its time is over; this module
does the same.

``HoldingsUpkeep`` has the router's own requests, which keep the leaseholder's memory of this client
right. They request protections again when the leaseholder may have forgotten them, and give back
messages without a waiting caller. A message must not be held without a caller when the answer to a
claim is lost::

    claim, number 7 ──▶ leased ── answer ──✗ the stream broke
         │ a caller waits yet ──▶ the same claim *again* ──▶ what it holds, or else as any claim
         └ none does ───────────▶ again, for nothing more ─▶ what it holds ─▶ given back, uncounted

The number of a claim is stored with its leases, so this works after a change of leader.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from postroom.client.routing.calls import HeardClock, Port, RemoteCall, UpkeepCall
from postroom.client.routing.links import Link
from postroom.client.sender import given_back
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.messaging.queues.requests import Claimed, ClaimQueue, Extend
from postroom.messaging.requests import ReapQueue
from postroom.ranges.requests import CommitTransaction, Protect, ReleaseLocks, Unprotect


class Holdings:
    """The protections and transactions of this client. False if there are none.

    Attributes:
        locking: the transactions for whose end others may wait.
    """

    __slots__ = ("_leased_until", "_protected", "_transactions", "locking")

    def __init__(self) -> None:
        self._protected: Counter[int] = Counter()
        self._transactions: dict[bytes, float] = {}
        self.locking: set[bytes] = set()
        self._leased_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._protected or self._transactions or self._leased_until)

    def claimed(self, answer: Claimed, now: float) -> None:
        """Note that messages of a queue were leased, or their leases extended.

        This module does not follow when they are given back: the client gives signs of life until
        the last of the leases has passed.
        """
        for each in answer.messages:
            self.leased(each.lasts / 1000, now)

    def leased(self, seconds: float, now: float) -> None:
        """Note that a message is held for ``seconds``."""
        self._leased_until = max(self._leased_until, now + seconds)

    def protect(self, timestamp: int) -> None:
        """Count a protection of a timestamp."""
        self._protected[timestamp] += 1

    def unprotect(self, timestamp: int) -> None:
        """Uncount a protection of a timestamp."""
        self._protected[timestamp] -= 1
        self._protected = +self._protected

    def protected(self) -> Iterator[int]:
        """Return the timestamps, each as often as it is protected."""
        return self._protected.elements()

    def answered(self, request: Any, answer: Any, now: float) -> None:
        """Note the answer to a transaction's request: it holds something, or nothing any more."""
        kind = type(request)
        if request.locks and (kind is not ReapQueue or answer.messages):
            seconds = min(TRANSACTION_SECONDS_MAX, request.seconds_max)
            self._transactions[request.transaction_id] = now + seconds
            if kind is not ReapQueue:
                self.locking.add(request.transaction_id)
        elif kind is not ReapQueue:
            self.ended(request.transaction_id)
        if kind is CommitTransaction:
            for write in request.writes:
                if type(write) is Extend:
                    self.leased(write.seconds, now)

    def ended(self, transaction_id: bytes) -> None:
        """Note that a transaction was committed or rolled back, or cannot be."""
        self._transactions.pop(transaction_id, None)
        self.locking.discard(transaction_id)

    def let_go(self, now: float) -> None:
        """Forget the transactions and leases whose time is over."""
        if self._leased_until <= now:
            self._leased_until = 0.0
        if self._transactions:
            over = [each for each, until in self._transactions.items() if until <= now]
            for transaction_id in over:
                self.ended(transaction_id)


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
            call.request = msgspec.structs.replace(call.request, again=True)
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
        elif kind is not CommitTransaction or self._holdings or _extends(call.request):
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


def _extends(request: CommitTransaction[Any]) -> bool:
    """Return whether a commit makes leases longer: then its client holds messages."""
    return Extend in map(type, request.writes)


LASTING = (ClaimQueue, CommitTransaction)
"""The types of the router's own requests that are sent until they are answered.

These find messages that are held without a caller, and give them back.
"""


def left_behind(call: RemoteCall) -> UpkeepCall | None:
    """Return the request that replaces a lost claim without a caller; ``None``: none is needed."""
    request = call.request
    if type(request) is not ClaimQueue or not call.was_sent or type(call) is UpkeepCall:
        return None
    if request.transaction_id is not None:
        return None  # its messages are freed with its transaction
    left = UpkeepCall(msgspec.structs.replace(request, messages_max=0, wait=False, again=True))
    left.number, left.deadline, left.was_sent = call.number, math.inf, True
    return left
