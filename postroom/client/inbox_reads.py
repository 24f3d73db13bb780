"""What a transaction takes out of inboxes, and sees in them, as applications call it.

``reap_queue`` takes messages, ``peek`` only looks; both are reads, as far as their documentation
says. What has been taken is remembered by :mod:`postroom.client.reaping`, what has been seen by
:mod:`postroom.client.reading`. Here arguments are checked, and what comes is unpacked.

What a transaction *sends* to inboxes is one of its writes (:mod:`postroom.client.writing`).
"""

from __future__ import annotations

from postroom.client import arguments
from postroom.client.pages import unpacked_messages
from postroom.client.reading import Reads
from postroom.client.reaping import Reaping
from postroom.client.values import Message, Reaped
from postroom.client.writing import Writes
from postroom.limits import REAPED_BYTES_DEFAULT


class InboxReads(Writes):
    """The calls of a transaction, in its asyncio form, that read inboxes."""

    __slots__ = ("_id", "_reads", "_reaping")

    _id: bytes
    _reads: Reads
    _reaping: Reaping | None

    async def reap_queue(
        self,
        key: bytes,
        max_results: int = 100,
        *,
        max_bytes: int | None = None,
        wait: float | None = None,
        max_attempts: int | None = None,
    ) -> Reaped:
        """Takes the oldest messages of ``key`` that nobody else holds.

        They are deleted when the transaction commits, and free again when it does not. What is not
        among them is no read; but an inbox that is found empty is one, unless others hold messages
        of it: the commit raises ``TransactionConflict`` if it is not empty any more.

        Args:
            key: whose inbox.
            max_results: how many at most.
            max_bytes: how many bytes of them at most (but one message at least); 8 MiB if not told,
                since what is reaped counts towards the 16 MiB of the transaction.
            wait: seconds to wait for the first one to arrive, as many as you like. The time-out of
                the transaction counts from the end of the wait, unless it has read or reaped
                something before.
            max_attempts: a message that has failed so often becomes a dead letter: when it is
                postponed, or when this transaction vanishes with it (its time passes, or its
                process is not heard of any more). What was tried before comes alone. ``None``:
                attempts are counted, and nothing becomes of that.

        Raises:
            TransactionConflict: what it had read or reaped before has become too old while it
                waited.
            WrongType: the codec cannot unpack one of the messages.
            KeyTooLarge, TransactionClosed, TransactionExpired: nothing was taken.
        """
        self._lifetime.check_alive()
        most = arguments.count(max_results, "max_results")
        size = (
            REAPED_BYTES_DEFAULT if max_bytes is None else arguments.count(max_bytes, "max_bytes")
        )
        key = arguments.key(key)
        tries = 0 if max_attempts is None else arguments.count(max_attempts, "max_attempts")
        patience = arguments.wait(wait)
        return await self._reaps.reap(key, most, size, patience, self._codec, tries)

    @property
    def _reaps(self) -> Reaping:
        if self._reaping is None:
            self._reaping = Reaping(self._sender, self._id, self._lifetime, self._reads)
        return self._reaping

    def reaped_ids(self, key: bytes) -> list[bytes]:
        """Of the messages of ``key`` that it has reaped, also what could not be unpacked."""
        return [] if self._reaping is None else list(self._reaping.taken(key))

    async def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """The oldest messages in the inbox of ``key``, without consuming any.

        A read like any other: as of the timestamp at which this transaction reads, and checked at
        the commit, which fails if other messages would be seen by then. What comes behind the last
        message of a peek that has found ``limit`` of them is not among that. Messages that other
        transactions hold are shown, those that this one has reaped are not. What it sends itself
        is not in an inbox before it commits.

        Args:
            key: whose inbox.
            limit: how many messages at most. 10,000 of one inbox are the most that can be checked;
                their bytes count towards the 16 MiB of the transaction.

        Raises:
            TransactionTooLarge: these are too many.
            Else as ``get``.
        """
        self._lifetime.check_alive()
        most = arguments.count(limit, "limit")
        key = arguments.key(key)
        found = await self._reads.peek(key, most + len(self._taken(key)))
        self._lifetime.check_open()
        self._buffer.count_peeked(key, found)
        own = self._taken(key)
        left = [pair for pair in found if pair[0] not in own]
        return unpacked_messages(key, left[:most], self._codec)

    def _taken(self, key: bytes) -> dict[bytes, int]:
        return {} if self._reaping is None else self._reaping.taken(key)


__all__ = ["InboxReads"]
