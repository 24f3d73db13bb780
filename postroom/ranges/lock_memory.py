"""What locks take in the leaseholder's memory, and who may take how much of it.

A transaction has so many locks at most, and so many bytes of them. All transactions of a range
share ``LOCKED_BYTES_MAX``. When there is no more of that, a client that has less than its share
(all of it, divided by the clients that have locks) gets more all the same, and one that has its
share is told to come back. So no client keeps others from locking, and no more than twice as much
is ever taken, about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postroom.counted import counted
from postroom.errors import TransactionTooLarge, Unavailable
from postroom.limits import (
    LOCK_BYTES,
    LOCKED_BYTES_MAX,
    LOCKED_SPANS_MAX,
    LOCKS_MAX,
    TRANSACTION_BYTES_MAX,
)
from postroom.ranges.requests import CLIENT_ID_BYTES

if TYPE_CHECKING:
    from postroom.ranges.locks import Token

_RETRY_SECONDS: Final = 0.1


class _Taken:
    """What a transaction has taken."""

    __slots__ = ("bytes", "locks", "spans")

    def __init__(self) -> None:
        self.locks = self.spans = self.bytes = 0


class LockMemory:
    """See the module.

    Attributes:
        bytes: what all locks take.
    """

    __slots__ = ("_by_client", "_by_transaction", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._by_transaction: dict[bytes, _Taken] = {}
        self._by_client: dict[bytes, int] = {}

    def take(self, token: Token, transaction_id: bytes) -> None:
        """A transaction locks ``token``.

        Raises:
            TransactionTooLarge: it has too many locks.
            Unavailable: its client has its share.
        """
        taken = self._by_transaction.get(transaction_id) or _Taken()
        is_span = isinstance(token, tuple)
        size = LOCK_BYTES + _key_bytes(token)
        client = transaction_id[:CLIENT_ID_BYTES]
        of_client = self._by_client.get(client, 0)
        if (
            taken.locks >= LOCKS_MAX
            or taken.bytes + size > TRANSACTION_BYTES_MAX
            or (is_span and taken.spans >= LOCKED_SPANS_MAX)
        ):
            raise _too_many(taken)
        if self.bytes + size > LOCKED_BYTES_MAX:
            clients = len(self._by_client) + (not of_client)
            if of_client + size > LOCKED_BYTES_MAX // clients:
                raise self._no_room(of_client)
        self._by_transaction[transaction_id] = taken
        taken.locks += 1
        taken.spans += is_span
        taken.bytes += size
        self.bytes += size
        self._by_client[client] = of_client + size

    def give_back(self, transaction_id: bytes) -> None:
        """A transaction has no lock any more."""
        taken = self._by_transaction.pop(transaction_id, None)
        if taken is None:
            return
        client = transaction_id[:CLIENT_ID_BYTES]
        self.bytes -= taken.bytes
        self._by_client[client] -= taken.bytes
        if not self._by_client[client]:
            del self._by_client[client]

    def clear(self) -> None:
        """Nobody has a lock any more."""
        self.bytes = 0
        self._by_transaction.clear()
        self._by_client.clear()

    def _no_room(self, of_client: int) -> Unavailable:
        return Unavailable(
            f"locks of all clients take {self.bytes:,} bytes of the leader's memory, those of this "
            f"client {of_client:,}, and it gets no more; nothing was changed: end some of its "
            "transactions, or try again after a moment (run() does)",
            retry_after=_RETRY_SECONDS,
        )


def _key_bytes(token: Token) -> int:
    return len(token) if isinstance(token, bytes) else len(token[0]) + len(token[1] or b"")


def _too_many(taken: _Taken) -> TransactionTooLarge:
    return TransactionTooLarge(
        f"the transaction has locked {counted(taken.locks, 'key')} and spans "
        f"({counted(taken.spans, 'span')}, {taken.bytes:,} bytes), and gets no more: a transaction "
        f"locks at most {LOCKS_MAX:,}, {LOCKED_SPANS_MAX} spans among them, of "
        f"{TRANSACTION_BYTES_MAX:,} bytes; nothing was changed: read keys without locking them, or "
        "do the work in smaller transactions"
    )
