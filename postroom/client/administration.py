"""The calls of a database for operators: waiting and dead messages, status; in its asyncio form.

:class:`postroom.aio.Database` has these calls and those for the data of applications.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from postroom.client import arguments, positions, values
from postroom.client.codec import Packing
from postroom.client.commits import commit_one
from postroom.client.pages import stored_letters, stored_schedule
from postroom.client.sender import Sender
from postroom.client.values import DeadLetter, InboxInfo, Scheduled, Status
from postroom.kv.clock import Timestamp
from postroom.limits import POSITION_SECONDS
from postroom.messaging.requests import (
    AwaitQuiet,
    CancelScheduled,
    DiscardDeadLetters,
    Inbox,
    ListInboxes,
    ReplayDeadLetters,
)
from postroom.protocol.failures import DeadlineExceeded


class Administration:
    """An open store, as its operator sees it."""

    def __init__(
        self,
        sender: Sender,
        codec: Packing,
        status: Callable[[], Awaitable[Status]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._sender = sender
        self.codec = codec
        self._status = status
        self._close = close

    # --- waiting messages and updates

    async def inboxes(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int = 100,
        ready: bool = False,
        by_key: bool = False,
    ) -> list[InboxInfo]:
        """Return the keys in ``[start, end)`` with waiting messages, the oldest message first.

        The cost depends on the limit, except for the first such request of a minute: it looks at
        all inboxes. With ``by_key`` a request looks only at the keys that it returns.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many keys at most.
            ready: whether to leave out keys that are held up by a postponed message.
            by_key: whether to return them in the order of the keys. The next request begins after
                the last key.

        Raises:
            Invalid: the result is more than one answer holds, 10,000 keys or 16 MiB of them: ask
                for fewer, or for parts of the span.
        """
        start, end = arguments.span(start, end)
        found: list[Inbox] = await self._sender.send(
            ListInboxes(start, end, arguments.count(limit, "limit"), bool(ready), bool(by_key))
        )
        return [
            InboxInfo(each.key, each.messages, Timestamp(each.oldest), each.held_up)
            for each in found
        ]

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """Return up to ``limit`` dead letters, the oldest first.

        These are messages and updates that could not be delivered, carried out or processed.

        Args:
            limit: how many at most.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        found = await stored_letters(self._sender, arguments.count(limit, "limit"))
        return [values.dead_letter(each, self.codec) for each in found]

    async def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Try dead letters again; return how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: an id is not valid.
            Unavailable, CommitUnknown: see ``put``.
        """
        ids = values.dead_letter_ids(dead_letter_ids)
        replayed: int = await commit_one(self._sender, b"", ReplayDeadLetters(ids))
        return replayed

    async def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Give dead letters up for good; return how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: an id is not valid.
            Unavailable, CommitUnknown: see ``put``.
        """
        ids = values.dead_letter_ids(dead_letter_ids)
        discarded: int = await commit_one(self._sender, b"", DiscardDeadLetters(ids))
        return discarded

    async def scheduled(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[Scheduled]:
        """Return the messages and updates for keys in ``[start, end)`` that wait for their time.

        Postponed messages are included.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many at most; those that are due first come first.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        start, end = arguments.span(start, end)
        most = arguments.count(limit, "limit")
        found = await stored_schedule(self._sender, start, end, most)
        return [values.scheduled(each, self.codec) for each in found]

    async def cancel(self, ids: Iterable[str]) -> int:
        """Cancel messages and updates that wait for their time.

        Args:
            ids: those of :meth:`scheduled`.

        Returns:
            How many were cancelled. Those that were delivered, carried out or cancelled before do
            not count. Each of them is either cancelled or takes place.

        Raises:
            ValueError: an id is not valid.
            Unavailable, CommitUnknown: see ``put``.
        """
        found = values.scheduled_ids(ids)
        cancelled: int = await commit_one(self._sender, b"", CancelScheduled(found))
        return cancelled

    async def drain(self, timeout: float = 30.0) -> None:
        """Wait until every outbox entry that is due has been delivered or carried out.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: some entries were still due after that time, or no node could tell.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
        try:
            await self._sender.send(AwaitQuiet(), timeout)
        except DeadlineExceeded:
            raise TimeoutError(
                f"outbox entries were still due after {timeout:g} s, or no node could tell"
            ) from None

    # --- readers that come back later

    async def keep_position(self, name: str, at: int, *, seconds: float = POSITION_SECONDS) -> None:
        """Keep all changes after ``at`` readable, for a reader that comes back later.

        The reader can go on with ``watch(after=at)``, whatever was restarted meanwhile. Garbage
        collection does not pass the oldest position, so forget a position that is not needed any
        more.

        Args:
            name: the name of the reader, 128 characters at most. It has one position: the last that
                was kept.
            at: a timestamp from :meth:`now`, a change or a commit.
            seconds: how long, a week at most, from when this position was kept first.

        Raises:
            SnapshotTooOld: something after ``at`` is collected already. The position before stays.
            Invalid: there are 1,000 positions already; or ``at`` lies in the future.
            Unavailable, CommitUnknown: it could not be done for a minute.
        """
        await positions.keep(self._sender, name, arguments.timestamp(at), seconds)

    async def forget_position(self, name: str) -> bool:
        """Forget the position of a reader that will not come back; return whether it had one.

        Args:
            name: the name of the reader.

        Raises:
            Unavailable, CommitUnknown: it could not be done for a minute.
        """
        return await positions.forget(self._sender, name)

    # --- the store itself

    async def status(self) -> Status:
        """Return the status of the store: sums over all messages, the leader, and the services."""
        return await self._status()

    async def close(self) -> None:
        """Wait for calls under way, then close the store.

        Any further call but this raises ``DatabaseClosed``; another ``close`` does nothing.
        """
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
