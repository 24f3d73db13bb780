"""The messages that a transaction takes out of inboxes, waits for, and gives back.

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
(:mod:`postroom.client.buffer`).

``Postponing`` gathers messages that were tried in vain. A message that is postponed or buried is
not consumed, though the transaction may have reaped it. The last call about a message counts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from postroom.client import arguments
from postroom.client.buffer import WriteBuffer
from postroom.client.codec import Packing
from postroom.client.lifetime import Lifetime
from postroom.client.pages import attempts_of, unpacked_messages
from postroom.client.reading import Reads
from postroom.client.sender import Sender
from postroom.client.values import Message, Reaped
from postroom.errors import TransactionConflict, Unavailable, WrongType, shorten
from postroom.limits import REAPED_BYTES_DEFAULT
from postroom.messaging.requests import (
    MESSAGE_ID_BYTES,
    BuryMessages,
    PostponeMessages,
    ReapedMessages,
    ReapMessages,
    ReapQueue,
)
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
                    f"a message of {shorten(key)} was tried by another consumer after this "
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


ANY_ATTEMPTS: Final = -1
"""The number of attempts of a message if it is not known."""
Messages: TypeAlias = Message | Iterable[Message]


class _Postponed(NamedTuple):
    key: bytes
    seconds: float | None
    reason: str
    hold: bool
    attempts_max: int

    def request(self, tries: list[tuple[bytes, int]]) -> PostponeMessages:
        """Return the request for these messages and their attempts."""
        return PostponeMessages(
            self.key, tries, self.seconds, self.reason, self.hold, self.attempts_max
        )


class _Buried(NamedTuple):
    key: bytes
    reason: str

    def request(self, tries: list[tuple[bytes, int]]) -> BuryMessages:
        """Return the request for these messages and their attempts."""
        return BuryMessages(self.key, tries, self.reason)


class Postponing:
    """The messages that a transaction postpones or buries.

    Args:
        reaping: what the transaction has reaped.
        grow: counts bytes towards the limit of the transaction.
    """

    __slots__ = ("_grow", "_reaping", "_said")

    def __init__(self, reaping: Reaping, grow: Callable[[int], None]) -> None:
        self._reaping = reaping
        self._grow = grow
        self._said: dict[tuple[bytes, bytes], tuple[_Postponed | _Buried, int]] = {}

    def postpone(
        self,
        messages: Messages,
        delay: Any,
        reason: str | None,
        *,
        hold: bool,
        max_attempts: int | None,
    ) -> None:
        """Gather messages to be postponed; see :meth:`.InboxWrites.postpone`."""
        seconds, why = arguments.seconds(delay, "delay"), arguments.reason(reason)
        most = None if max_attempts is None else arguments.count(max_attempts, "max_attempts")
        for key, id_, attempts in _named(messages):
            of_reap = self._reaping.taken(key).get(id_, 0)
            attempts_max = of_reap if most is None else most
            self._say(_Postponed(key, seconds, why, bool(hold), attempts_max), id_, attempts)

    def bury(self, messages: Messages, reason: str | None) -> None:
        """Gather messages to be buried; see :meth:`.InboxWrites.bury`."""
        why = arguments.reason(reason)
        for key, id_, attempts in _named(messages):
            self._say(_Buried(key, why), id_, attempts)

    def _say(self, what: _Postponed | _Buried, id_: bytes, attempts: int) -> None:
        self._grow(MESSAGE_ID_BYTES + len(what.key) + len(what.reason))
        self._said[what.key, id_] = what, attempts

    def includes(self, key: bytes, id_: bytes) -> bool:
        """Return whether a message is postponed or buried."""
        return (key, id_) in self._said

    def requests(self) -> list[Any]:
        """Return the requests of the commit."""
        tries: dict[_Postponed | _Buried, list[tuple[bytes, int]]] = {}
        for (_, id_), (what, attempts) in self._said.items():
            tries.setdefault(what, []).append((id_, attempts))
        return [what.request(each) for what, each in tries.items()]


def _named(messages: Any) -> list[tuple[bytes, bytes, int]]:
    """Return key, id and attempts of each message."""
    given = list(messages) if isinstance(messages, Iterable) else [messages]
    for each in given:
        if not isinstance(each, Message):
            raise TypeError(f"expected messages of inboxes, not {type(each).__name__}")
    return [(each.key, each._id, each.attempts) for each in given]


class InboxWrites:
    """The calls of a transaction, of either form, about messages that were tried in vain."""

    __slots__ = ()

    @property
    def postponing(self) -> Postponing:
        """Return what is gathered.

        For layers on top.
        """
        raise NotImplementedError

    def postpone(
        self,
        messages: Messages,
        delay: Any = None,
        reason: str | None = None,
        *,
        hold: bool = False,
        max_attempts: int | None = None,
    ) -> None:
        """Let messages that were tried in vain come again later, when the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        They leave their inbox, and come back to the places that they had in it. ``scheduled`` lists
        them meanwhile, and ``cancel`` takes them back. It counts as an attempt.

        Args:
            messages: one, or several: reaped by this transaction, or seen by another one.
            delay: seconds, or a ``timedelta``; ``None``: a second, doubled with each attempt, five
                minutes at most, varied by up to a tenth. 0: at once.
            reason: why; kept as ``last_error``, up to 1000 characters.
            hold: whether messages behind them in the inbox wait for them. Otherwise they pass.
            max_attempts: after this many attempts a message becomes a dead letter instead;
                ``None``: the number given to ``reap_queue``.

        Raises:
            TransactionTooLarge, TransactionClosed: nothing was changed. The commit raises
                ``TransactionConflict`` if another transaction has consumed or tried one of them.
        """
        self.postponing.postpone(messages, delay, reason, hold=hold, max_attempts=max_attempts)

    def bury(self, messages: Messages, reason: str | None = None) -> None:
        """Make messages dead letters when the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        Args:
            messages: see :meth:`postpone`.
            reason: why; kept with them, up to 1000 characters.

        Raises:
            TransactionTooLarge, TransactionClosed: see :meth:`postpone`.
        """
        self.postponing.bury(messages, reason)
