"""The synchronous form of a snapshot: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from postroom.client import snapshot as asynchronous
from postroom.client.sender import BlockingSender
from postroom.client.sync_iteration import iterate
from postroom.client.values import Message
from postroom.kv.clock import Timestamp


class Snapshot:
    """Reads at one timestamp, protected from garbage collection while it is open.

    Raises (all its methods):
        WrongType: the codec cannot unpack what was there.
        SnapshotTooOld: the leaseholder's memory was lost for so long that it was collected after
            all.
    """

    def __init__(self, sender: BlockingSender, core: asynchronous.Snapshot) -> None:
        self._sender = sender
        self._core = core

    @property
    def timestamp(self) -> Timestamp:
        """Where it reads."""
        return self._core.timestamp

    def get(self, key: bytes) -> Any:
        """The value of ``key`` then."""
        return self._sender.run(self._core.get(key))

    def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys`` then, in their order."""
        return self._sender.run(self._core.get_many(keys))

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, Any]]:
        """The pairs in ``[start, end)`` then; arguments as :meth:`Database.scan`."""
        return iterate(self._sender, self._core.scan(start, end, limit=limit, reverse=reverse))

    def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """The oldest ``limit`` messages in the inbox of ``key`` then."""
        return self._sender.run(self._core.peek(key, limit))
