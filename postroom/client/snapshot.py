"""A snapshot as applications use it, in its asyncio form: reads of a database at one timestamp."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Protocol

from postroom.client.values import Message
from postroom.kv.clock import Timestamp


class Readable(Protocol):
    """The reads of a database that a snapshot needs."""

    async def get(self, key: bytes, *, at: int | None = None) -> Any:
        """Return the value of a key."""

    async def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """Return the values of keys."""

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        """Return the pairs of a span."""

    async def peek(self, key: bytes, limit: int = 100, *, at: int | None = None) -> list[Message]:
        """Return the oldest messages of an inbox."""


class Snapshot:
    """Reads at one timestamp, protected from garbage collection while the snapshot is open.

    Attributes:
        timestamp: the timestamp at which it reads.
    """

    def __init__(self, database: Readable, timestamp: int) -> None:
        self._database = database
        self.timestamp = Timestamp(timestamp)

    async def get(self, key: bytes) -> Any:
        """Return the value of ``key`` at the snapshot; see :meth:`Database.get`.

        Args:
            key: up to 8 KiB.
        """
        return await self._database.get(key, at=self.timestamp)

    async def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """Return the values of ``keys`` at the snapshot, in their order.

        Args:
            keys: up to 8 KiB each.
        """
        return await self._database.get_many(keys, at=self.timestamp)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncGenerator[tuple[bytes, Any], None]:
        """Return the pairs in ``[start, end)`` at the snapshot; see :meth:`Database.scan`.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many at most.
            reverse: whether to go from the end backwards.
        """
        return self._database.scan(start, end, limit=limit, reverse=reverse, at=self.timestamp)

    async def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """Return the oldest ``limit`` messages in the inbox of ``key`` at the snapshot.

        Args:
            key: the recipient.
            limit: how many at most.
        """
        return await self._database.peek(key, limit, at=self.timestamp)
