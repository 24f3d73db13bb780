"""The limits of a gateway, and what its clients use of them.

A client is a token, a certificate, or the host that it calls from: the first of these that is
known. Each limit is for all clients together, and half of it for one of them, so that no client
takes everything. A call above a limit fails at once with ``RESOURCE_EXHAUSTED``; nothing happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from postroom.errors import Unavailable

RETRY_SECONDS: Final = 0.2

PAGE_PAIRS_MAX: Final = 1000
"""The pairs of a response of a scan."""
SCAN_BYTES_MAX: Final = 8 << 20
"""The memory of a scan: a page of the store, up to a thousand pairs, waits for the client."""
TRANSACTION_SECONDS_MAX: Final = 60.0
"""The time of a transaction, as in the store."""
OPERATIONS_MAX: Final = 1000
"""The operations of a request of a transaction: each of them takes a turn of the event loop."""
UNDER_WAY_MAX: Final = 256
"""The transactions of a stream of `BatchExecute` that run, or whose responses have not left."""
BATCH_MAX: Final = 1000
"""The transactions of a request of `BatchExecute`, and the ids that a call returns."""
BATCH_RESPONSE_BYTES: Final = 256 << 10
"""The size from which a response of `BatchExecute` takes no more transactions."""
PAIRS_MAX: Final = 1000
"""The pairs that an operation of a transaction scans."""
REAPED_BYTES_MAX: Final = 4 << 20
"""The messages that an operation reaps: they travel in a response."""
BACKOFF_SECONDS_MAX: Final = 1.0
"""The pause before a commit is tried again."""
CREDIT_MAX: Final = 1000
"""The messages that a stream of `Receive` may hold: they wait in memory."""
SETTLED_AT_A_TIME_MAX: Final = 10_000
"""The messages that a call settles: they are one transaction."""
MESSAGE_CHARACTERS_MAX: Final = 1000
"""The text of an error. Most libraries refuse more than 8 KiB of trailing metadata."""
HEADERS_BYTES_MAX: Final = 16 << 10
"""The metadata of a request."""


class Exhausted(Unavailable):
    """A limit of the gateway was met. Nothing happened; it may be tried again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a gateway.

    Attributes:
        request_bytes_max: the largest request message.
        response_bytes_max: the largest response message.
        calls_max: how many calls are under way; a stream is one until it ends.
        transactions_max: how many transactions are open.
        memory_bytes_max: the memory for open transactions and for messages of queues that clients
            contain.
        connections_max: to the store, one for each token.
        connecting_max: how many of them are made at a time.
        streams_per_connection_max: calls at a time of one connection of a client; others wait in
            the client.
    """

    request_bytes_max: int = 4 << 20
    response_bytes_max: int = 24 << 20
    calls_max: int = 4096
    transactions_max: int = 1024
    memory_bytes_max: int = 256 << 20
    connections_max: int = 256
    connecting_max: int = 16
    streams_per_connection_max: int = 1024


class Usage:
    """The current use of one client, or of all of them.

    Attributes:
        calls: how many calls are under way.
        transactions: how many transactions are open.
        memory_bytes: the memory of its transactions and messages.
    """

    __slots__ = ("calls", "memory_bytes", "transactions")

    def __init__(self) -> None:
        self.calls = 0
        self.transactions = 0
        self.memory_bytes = 0


class GatewayAdmission:
    """The admission of calls: it counts what clients use, and refuses what would be too much.

    Args:
        limits: the limits.

    Attributes:
        total: what all clients use together.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = Usage()
        self._clients: dict[str, Usage] = {}

    def call(self, client: str) -> AdmittedCall:
        """Admit a call.

        Raises:
            Exhausted: there are too many already.
        """
        usage = self._clients.get(client)
        if usage is None:
            usage = self._clients[client] = Usage()
        _check(usage.calls, self.total.calls, self._limits.calls_max, "calls under way")
        usage.calls += 1
        self.total.calls += 1
        return AdmittedCall(self, client, usage)

    def begin(self, usage: Usage) -> None:
        """Admit a transaction.

        Raises:
            Exhausted: there are too many already.
        """
        most = self._limits.transactions_max
        _check(usage.transactions, self.total.transactions, most, "open transactions")
        usage.transactions += 1
        self.total.transactions += 1

    def take(self, usage: Usage, size: int) -> None:
        """Take memory.

        Raises:
            Exhausted: there is not so much left.
        """
        most, own, total = self._limits.memory_bytes_max, usage.memory_bytes, self.total
        _check(own + size, total.memory_bytes + size, most, "bytes of transactions and messages")
        usage.memory_bytes += size
        total.memory_bytes += size

    def give(self, usage: Usage, size: int) -> None:
        """Give memory back."""
        usage.memory_bytes -= size
        self.total.memory_bytes -= size

    def finish(self, usage: Usage, transactions: int) -> None:
        """Note the end of transactions."""
        usage.transactions -= transactions
        self.total.transactions -= transactions

    def end(self, client: str, usage: Usage) -> None:
        """Note the end of a call."""
        usage.calls -= 1
        self.total.calls -= 1
        if not usage.calls:
            del self._clients[client]


class AdmittedCall:
    """A call that was admitted: it gives back what it has taken when its block ends."""

    __slots__ = ("_admission", "_client", "_is_leaving", "_memory_bytes", "_transactions", "_usage")

    def __init__(self, admission: GatewayAdmission, client: str, usage: Usage) -> None:
        self._admission = admission
        self._client = client
        self._usage = usage
        self._transactions = 0
        self._memory_bytes = 0
        self._is_leaving = False

    def begin(self) -> None:
        """Count a transaction.

        Raises:
            Exhausted: there are too many already.
        """
        self._admission.begin(self._usage)
        self._transactions += 1

    def finish(self) -> None:
        """Note that its transaction has ended."""
        self._admission.finish(self._usage, self._transactions)
        self._transactions = 0

    def take(self, size: int) -> None:
        """Take memory until the call ends.

        Raises:
            Exhausted: there is not so much left.
        """
        self._admission.take(self._usage, size)
        self._memory_bytes += size

    def give(self, size: int) -> None:
        """Give memory back before the call ends."""
        self._admission.give(self._usage, size)
        self._memory_bytes -= size

    def leave(self, context: Any) -> None:
        """Go on after the block, until gRPC has sent the response or has lost the client."""
        self._is_leaving = True
        context.add_done_callback(self._end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_leaving:
            self._end(None)

    def _end(self, _: Any) -> None:
        if self._transactions:
            self.finish()
        if self._memory_bytes:
            self._admission.give(self._usage, self._memory_bytes)
        self._admission.end(self._client, self._usage)


def _check(own: int, total: int, most: int, name: str) -> None:
    if total < most and own < max(most // 2, 1):
        return
    whose = "this client has" if own >= max(most // 2, 1) else "all clients together have"
    raise Exhausted(
        f"{whose} as many {name} as the gateway allows (of {most} for all clients, half for one); "
        "nothing happened: end some, or try again",
        RETRY_SECONDS,
    )
