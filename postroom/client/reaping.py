"""The messages that a transaction takes out of inboxes, and how it waits for more.

A reap claims messages: no other transaction is given them until this one ends. Its commit deletes
them, by their ids. The leaseholder keeps claims in memory only, so a new one may give a transaction
the same messages again; those are not handed out twice. A new leaseholder may also give them to
another transaction, which tries them in vain and puts them back. The commit therefore tells how
many attempts they had, and is refused if they have more by now.

A transaction that has neither read nor reaped anything has no age. It may wait for the first
message for any time, and its own time begins when the wait ends. Later waits use up its time.

``reap_queue`` takes messages, ``peek`` only looks; both are reads, as far as their documentation
says. ``Reaping`` remembers what was taken, :mod:`postroom.client.reading` what was seen.

The messages that a transaction *sends* to inboxes are among its writes
(:mod:`postroom.client.writing`).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import msgspec

from postroom.client import arguments
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.pages import attempts_of, unpacked_messages
from postroom.client.reading import Reads
from postroom.client.sender import Sender
from postroom.client.values import Message, Reaped
from postroom.client.writing import WriteBuffer
from postroom.errors import TransactionConflict, Unavailable, WrongType, shorten
from postroom.limits import REAPED_BYTES_DEFAULT
from postroom.messaging.requests import ReapedMessages, ReapMessages, ReapQueue
from postroom.protocol.failures import DeadlineExceeded

LAST_LOOK_SECONDS: Final = 0.5
"""The time that a reap which gives up may take beyond ``wait``, in seconds."""


class Reaping:
    """The reaps of one transaction.

    Attributes:
        waited_seconds: how long it has waited for messages.
    """

    __slots__ = ("_id", "_lifetime", "_reads", "_sender", "_taken", "_tried", "waited_seconds")

    def __init__(
        self, sender: Sender, transaction_id: bytes, lifetime: Lifetime, reads: Reads
    ) -> None:
        self._sender = sender
        self._id = transaction_id
        self._lifetime = lifetime
        self._reads = reads
        self._taken: dict[bytes, dict[bytes, int]] = {}
        self._tried: dict[bytes, dict[bytes, int]] = {}
        self.waited_seconds = 0.0

    def taken(self, key: bytes) -> dict[bytes, int]:
        """Return the ids that it has taken out of the inbox of ``key``, in order.

        The values are the most attempts that each message may have; 0: any number.
        """
        return self._taken.get(key, {})

    def __bool__(self) -> bool:
        """Return whether it has taken any."""
        return bool(self._taken)

    def requests(self, is_left_out: Callable[[bytes, bytes], bool] | None) -> list[ReapMessages]:
        """Return the deletions of the commit.

        Args:
            is_left_out: tells by key and id whether a message is postponed or buried instead;
                ``None``: none is.
        """
        found = []
        for key, taken in self._taken.items():
            ids = list(taken)
            if is_left_out is not None:
                ids = [id_ for id_ in ids if not is_left_out(key, id_)]
            if ids:
                tried = self._tried.get(key)
                tries = [(id_, tried[id_]) for id_ in ids if id_ in tried] if tried else []
                found.append(ReapMessages(key, ids, True, tries))
        return found

    async def reap(
        self,
        key: bytes,
        most: int,
        most_bytes: int,
        patience: float,
        codec: Packing,
        attempts_max: int = 0,
    ) -> Reaped:
        """Return the oldest messages of ``key`` that no other transaction holds.

        Args:
            key: the recipient.
            most, most_bytes: how many, and how many bytes of them.
            patience: seconds to wait for the first one.
            codec: unpacks them.
            attempts_max: how many attempts they may have; 0: any number.

        Raises:
            TransactionConflict: an earlier read or reap has become too old while it waited.
        """
        reply = await self._ask(key, most, most_bytes, patience, attempts_max)
        self._lifetime.check_still_open()
        if reply.drained is not None:
            self._reads.found_drained(key, reply.drained)
        own = self._taken.get(key, ())
        # A new leaseholder has forgotten what this transaction holds, and may give it once more.
        fresh = [pair for pair in reply.messages if pair[0] not in own] if own else reply.messages
        if len(fresh) < len(reply.messages):
            self._check_again(key, reply.messages, own)
        if fresh:  # also if the codec cannot unpack them
            ids = [id_ for id_, _ in fresh]
            self._taken.setdefault(key, {}).update(dict.fromkeys(ids, attempts_max))
        tried: dict[bytes, int] = {}
        try:
            messages = unpacked_messages(key, fresh, codec, tried)
        except WrongType:  # they, and the messages behind them, may still be consumed
            tried = {id_: attempts_of(stored) for id_, stored in fresh}
            raise
        finally:
            if tried:
                self._tried.setdefault(key, {}).update(tried)
        return Reaped(messages, more=reply.more)

    def _check_again(
        self, key: bytes, given: list[tuple[bytes, bytes]], own: Container[bytes]
    ) -> None:
        """Check that no other transaction has tried the messages that are given once more.

        Raises:
            TransactionConflict: another transaction has.
        """
        tried = self._tried.get(key, {})
        for id_, stored in given:
            if id_ in own and attempts_of(stored) != tried.get(id_, 0):
                raise TransactionConflict(
                    f"a message of {shorten(key)} was tried by somebody else after this "
                    "transaction had reaped it; nothing was changed: try again (run() does)"
                )

    async def _ask(
        self, key: bytes, most: int, most_bytes: int, patience: float, attempts_max: int
    ) -> ReapedMessages:
        """Return the messages that are there, or that come within ``patience`` seconds.

        Before it has read or reaped anything a transaction has no age: nothing that it knows can
        become outdated, and no other transaction waits for it. Afterwards the time that it waits
        counts like any other.
        """
        lifetime = self._lifetime
        left = lifetime.remaining()
        is_idle = not (self._reads or self._taken or lifetime.is_unknown)
        seconds_left = lifetime.timeout if is_idle else left
        request = ReapQueue(
            key, most, most_bytes, self._id, seconds_left, patience > 0, attempts_max
        )
        lifetime.holds = True
        time_out = patience if is_idle else min(patience, left)
        began_to_wait = self._sender.monotonic()
        reply: ReapedMessages | None = None
        try:
            reply = await self._sender.send(request, time_out if patience else None)
        except DeadlineExceeded:
            if time_out < patience:
                raise self._too_old() from None
        finally:
            if patience:
                self.waited_seconds += self._sender.monotonic() - began_to_wait
        if patience and is_idle:
            lifetime.start_clock()
        if reply is None:
            reply = await self._last_look(request)
        return reply

    async def _last_look(self, request: ReapQueue) -> ReapedMessages:
        """Return what is there after a wait in vain, and whether others hold messages.

        If the store does not tell in time, the inbox counts as found empty, which the commit
        checks.
        """
        at_once = msgspec.structs.replace(request, wait=False)
        try:
            reply: ReapedMessages = await self._sender.send(at_once, LAST_LOOK_SECONDS)
        except (DeadlineExceeded, Unavailable):
            return ReapedMessages([], more=False, drained=len(self._taken.get(request.key, ())))
        return reply

    def _too_old(self) -> TransactionConflict:
        return TransactionConflict(
            f"the transaction waited for messages until it had been open for "
            f"{self._lifetime.timeout:g} s, and what it had read or reaped before is too old; "
            "nothing was changed: try again (run() does), and wait for messages first"
        )


class InboxReads(WriteBuffer):
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


__all__ = ["LAST_LOOK_SECONDS", "InboxReads", "Reaping"]
