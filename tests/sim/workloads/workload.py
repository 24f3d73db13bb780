"""The form of a workload: ``setup``, ``start``, ``check``, as FoundationDB's have.

``setup`` runs first, alone. ``start`` is then run by several clients at once, each until it is told
to stop; a client may be killed at any moment, and another one takes its place. When everything has
come to rest ``check`` looks at what is left. A workload keeps in its own memory only what a client
was told; the facts that must match are written into the store, by the very transactions in
question.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any, Protocol, TypeVar

from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Retryable, SnapshotTooOld, TransactionExpired

T = TypeVar("T")

EXPECTED = (Retryable, CommitUnknown, SnapshotTooOld, TransactionExpired)
"""The errors that may come while machines die and clocks are set."""


class Client:
    """A client that runs a workload.

    Attributes:
        number: which of the workload's clients; another one who takes its place has the same.
        life: which of those who had its place.
        done: how many of its attempts have come to something.
    """

    def __init__(
        self,
        db: CoreDatabase,
        randomness: Random,
        number: int,
        life: int,
        is_over: Callable[[], bool],
    ) -> None:
        self.db = db
        self.random = randomness
        self.number = number
        self.life = life
        self._is_over = is_over
        self._tokens = 0
        self.done = 0

    def goes_on(self) -> bool:
        """Return whether there is still something to do."""
        return not self._is_over()

    def token(self) -> bytes:
        """Return a name that no other client uses."""
        self._tokens += 1
        return f"{self.number}-{self.life}-{self._tokens}".encode()

    async def pause(self, seconds: float = 0.02) -> None:
        """Let some time pass."""
        await self.db._sender.sleep(self.random.random() * seconds)

    async def attempt(self, awaitable: Awaitable[T]) -> T | None:
        """Return the result of an awaitable; ``None`` if one of the expected errors came."""
        try:
            result = await awaitable
        except EXPECTED:
            await self.pause(0.2)
            return None
        self.done += 1
        return result


class Workload(Protocol):
    """A workload: see the module."""

    clients: int

    async def setup(self, db: CoreDatabase) -> None:
        """Set up what must be there before."""

    async def start(self, client: Client) -> None:
        """Do what each client does, until it is over."""

    async def check(self, db: CoreDatabase) -> None:
        """Raise ``AssertionError`` unless everything is as it must be."""


async def pairs(db: CoreDatabase, prefix: bytes) -> list[tuple[bytes, Any]]:
    """Return all that the store holds under ``prefix``."""
    return [pair async for pair in db.scan(prefix, prefix + b"\xff")]


async def reap_all(db: CoreDatabase, key: bytes) -> list[Any]:
    """Empty an inbox that no other client uses."""

    async def take(tx: Any) -> list[Any]:
        return list(await tx.reap_queue(key, 1000))

    taken: list[Any] = []
    while some := await db.run(take):
        taken += some
    return taken
