"""Which transactions hold something in the leaseholder's memory, and until when.

Locks (:mod:`.locks`) and claims on messages save work; they do not make anything correct, and they
must not outlive the transactions that they serve. Code that takes one says so here. What a
transaction holds is released, all of it, when

* it ends: it is committed, or rolled back;
* its time is over: ``hold`` says how long it may stay open;
* its client has gone: it was not heard of for a while (``postroom.server.cluster.session``).

Seconds are those of a monotonic clock: nobody holds anything longer because a wall clock was set
back. There is one deadline a transaction, however much it holds and however many wait for it.

The first half of a transaction's id names its client.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.ranges.deadlines import Deadlines
from postroom.ranges.requests import CLIENT_ID_BYTES


class Holders:
    """The transactions that hold something, each with one deadline. Its length is their number.

    Args:
        monotonic: seconds that never go back.
        ring_at: asked to have ``take_expired`` called at a moment. It is not asked again before
            that moment for one that is later.
    """

    __slots__ = ("_clients", "_expiries", "_monotonic", "_ring_at", "_rings_at")

    def __init__(self, monotonic: Callable[[], float], ring_at: Callable[[float], object]) -> None:
        self._monotonic = monotonic
        self._ring_at = ring_at
        self._rings_at: float | None = None
        self._expiries: Deadlines[bytes] = Deadlines()
        self._clients: dict[bytes, dict[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._expiries)

    def hold(self, transaction_id: bytes, seconds: float) -> None:
        """The transaction has taken something, and may stay open for ``seconds`` from now."""
        expiry = self._monotonic() + min(TRANSACTION_SECONDS_MAX, seconds)
        of_client = self._clients.setdefault(transaction_id[:CLIENT_ID_BYTES], {})
        known = of_client.get(transaction_id)
        if known is not None and known >= expiry:
            return
        of_client[transaction_id] = expiry
        self._expiries.set(transaction_id, expiry)
        if self._rings_at is None or expiry < self._rings_at:
            self._rings_at = expiry
            self._ring_at(expiry)

    def knows(self, transaction_id: bytes) -> bool:
        """Whether it holds anything."""
        clients = self._clients
        return bool(clients) and transaction_id in clients.get(transaction_id[:CLIENT_ID_BYTES], ())

    def release(self, transaction_id: bytes) -> None:
        """It holds nothing any more."""
        self._expiries.cancel(transaction_id)
        client = transaction_id[:CLIENT_ID_BYTES]
        of_client = self._clients.get(client)
        if of_client is not None:
            of_client.pop(transaction_id, None)
            if not of_client:
                del self._clients[client]

    def of(self, client: bytes) -> list[bytes]:
        """The transactions of a client that hold something."""
        return list(self._clients.get(client, ()))

    def next_deadline(self) -> float | None:
        """When ``take_expired`` is to be called; there may be nothing to take then."""
        return self._rings_at

    def take_expired(self) -> list[bytes]:
        """The transactions whose time is over, to be released."""
        now = self._monotonic()
        if self._rings_at is None or self._rings_at > now:
            return []
        expired = self._expiries.take_due(now)
        self._rings_at = self._expiries.first()
        return expired

    @property
    def entries(self) -> int:
        """How many deadlines are kept, those included that were cancelled and not removed yet."""
        return self._expiries.entries

    def clear(self) -> None:
        """Nobody holds anything."""
        self._expiries.clear()
        self._clients.clear()
