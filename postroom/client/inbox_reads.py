"""The calls with which a transaction takes messages out of inboxes, and looks at them.

``reap_queue`` takes messages, ``peek`` only looks; both are reads, as far as their documentation
says. :mod:`postroom.client.reaping` remembers what was taken, :mod:`postroom.client.reading` what
was seen. This module checks arguments and unpacks answers.

The messages that a transaction *sends* to inboxes are among its writes
(:mod:`postroom.client.writing`).
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
        """Take the oldest messages of ``key`` that no other transaction holds.

        They are deleted when the transaction commits, and free again when it does not. Messages
        that it does not return are no read. But an inbox that is found empty is one, unless others
        hold messages of it: the commit raises ``TransactionConflict`` if it is not empty any more.

        Args:
            key: the recipient.
            max_results: how many at most.
            max_bytes: how many bytes of them at most (but one message at least); 8 MiB by default,
                since reaped messages count towards the 16 MiB of the transaction.
            wait: seconds to wait for the first one to arrive, any number. The time-out of the
                transaction counts from the end of the wait, unless it has read or reaped something
                before.
            max_attempts: after this many failed attempts a message becomes a dead letter. An
                attempt fails when the message is postponed, or when this transaction vanishes with
                it (its time passes, or its process is not heard of any more). A message that was
                tried before comes alone. ``None``: attempts are counted, without a limit.

        Returns:
            The messages, and whether further ones wait.

        Raises:
            TransactionConflict: an earlier read or reap has become too old while it waited.
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
        """Return the ids of the messages of ``key`` that it has reaped, decodable or not.

        For layers on top.

        Args:
            key: the recipient.
        """
        return [] if self._reaping is None else list(self._reaping.taken(key))

    async def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """Return the oldest messages in the inbox of ``key``, without consuming any.

        It is a read like any other: it looks at this transaction's read timestamp, and the commit
        fails if it would find other messages by then. A peek that has found ``limit`` messages is
        not in conflict with messages behind the last one. It shows messages that other transactions
        hold, but not those that this one has reaped. Messages that this transaction sends are in no
        inbox before it commits.

        Args:
            key: the recipient.
            limit: how many messages at most. A commit can check at most 10,000 of one inbox; their
                bytes count towards the 16 MiB of the transaction.

        Raises:
            TransactionTooLarge: there are too many.
            KeyTooLarge, WrongType, TransactionClosed, TransactionExpired: see ``get``.
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
