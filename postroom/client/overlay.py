"""A transaction's view of the store: the store at its read timestamp, with its own writes over it.

::

    get ── written here? ─┬─ yes ─▶ what it wrote
                          └─ no ──▶ Reads (the store, at one timestamp) ─▶ written meanwhile?

``get`` itself is a part of :class:`.transaction.Transaction`, because it is the most frequent call.

Calls of one transaction may run at the same time. The transaction is therefore checked again after
each answer: it may have ended, or have written the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from postroom.client.buffer import Buffer, overlaid
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.pages import unpacked_values
from postroom.client.reading import Reads
from postroom.errors import ConditionFailed, TransactionConflict, shorten
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.evaluators import INTEGER


class Overlay:
    """The keys of one transaction. Arguments are checked already."""

    __slots__ = ("_buffer", "_codec", "_lifetime", "_reads")

    def __init__(self, lifetime: Lifetime, reads: Reads, buffer: Buffer, codec: Packing) -> None:
        self._lifetime = lifetime
        self._reads = reads
        self._buffer = buffer
        self._codec = codec

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        """Return the values of ``keys``, in their order."""
        buffer = self._buffer
        missing = [key for key in dict.fromkeys(keys) if key not in buffer.writes]
        found: dict[bytes, Any] = {}
        if missing:
            reply = await self._reads.get_many(missing)
            self._lifetime.check_open()
            found.update(zip(missing, unpacked_values(missing, reply, self._codec), strict=True))
        # A concurrent call may have written some of them meanwhile.
        return [
            buffer.value(key, self._codec) if key in buffer.writes else found[key] for key in keys
        ]

    async def get_for_update(self, key: bytes, transaction_id: bytes) -> Any:
        """Return the value of ``key``, and lock it.

        Raises:
            TransactionConflict: another transaction kept it locked for too long.
        """
        self._lifetime.holds = True
        try:
            reply = await self._reads.get_for_update(
                key, transaction_id, self._lifetime.remaining(),
                self._lifetime.age or self._lifetime.began,
            )  # fmt: skip
        except DeadlineExceeded:
            raise TransactionConflict(
                f"another transaction holds {shorten(key)} and did not end in time; nothing was "
                "changed: try again (run() does)",
                keys=(key,),
            ) from None
        self._lifetime.check_still_open()
        if key in self._buffer.writes:
            return self._buffer.value(key, self._codec)
        stored = reply.value
        return None if stored is None else self._codec.decode(stored, key, integer=reply.integer)

    async def stored(self, key: bytes) -> tuple[bytes | None, bool]:
        """Return the packed value of ``key``, and whether it is an integer."""
        buffer = self._buffer
        if key not in buffer.writes:
            reply = await self._reads.get(key)
            self._lifetime.check_open()
            if key not in buffer.writes:  # a concurrent call may have written it
                return reply.value, reply.integer
        return buffer.writes[key], key in buffer.integers

    async def check_holds(self, key: bytes, wanted: bytes | None, or_integer: int | None) -> None:
        """Check what a conditional write expects.

        Args:
            key: the key to check.
            wanted: its expected value, packed; ``None``: nothing.
            or_integer: its expected value, if an integer is stored and the codec packs objects.

        Raises:
            ConditionFailed: it holds something else.
        """
        actual, integer = await self.stored(key)
        if integer and actual is not None and self._codec.packs:
            as_expected = INTEGER.unpack(actual)[0] == or_integer
        else:
            as_expected = actual == wanted
        if not as_expected:
            decode = self._codec.decode
            raise ConditionFailed(
                f"{shorten(key)} does not hold the expected value; nothing was changed: read it "
                "again and decide anew",
                None if actual is None else decode(actual, key, integer=integer),
            )

    async def scan(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[tuple[bytes, Any]]:
        """Return the pairs in ``[start, end)``."""
        decode = self._codec.decode
        found = self.scan_stored(start, end, limit=limit, reverse=reverse)
        async for key, value, integer in found:
            yield key, decode(value, key, integer=integer)

    async def scan_stored(
        self, start: bytes, end: bytes | None, *, limit: int | None, reverse: bool
    ) -> AsyncIterator[tuple[bytes, bytes, bool]]:
        """Return the pairs in ``[start, end)``, packed, and whether each is an integer."""
        self._lifetime.check_alive()
        left = -1 if limit is None else limit
        own = sorted(self._buffer.writes_in(start, end), reverse=reverse)
        size = None if limit is None else limit + len(own)
        async for page in self._reads.scan(start, end, limit=size, reverse=reverse):
            self._lifetime.check_open()
            integers = self._buffer.integers_in(page)
            for key, value in overlaid(page, own, reverse=reverse):
                if left == 0:
                    return
                left -= 1
                yield key, value, key in integers


__all__ = ["Overlay"]
