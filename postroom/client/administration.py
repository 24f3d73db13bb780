"""What operators ask of a database: what waits, what has died, how it is; in its asyncio form.

:class:`postroom.aio.Database` is this and what applications do with data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from postroom.client import arguments, letters
from postroom.client.codec import Packing
from postroom.client.commits import commit_one
from postroom.client.pages import stored_letters, stored_schedule
from postroom.client.sender import Sender
from postroom.client.values import DeadLetter, InboxInfo, Scheduled, Status
from postroom.kv.clock import Timestamp
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

    # --- what waits

    async def inboxes(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int = 100,
        ready: bool = False,
    ) -> list[InboxInfo]:
        """The keys in ``[start, end)`` with waiting messages, those with the oldest one first.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many keys at most.
            ready: without those that are held up by a message that was postponed.

        Raises:
            Invalid: it is more than one answer holds, 10,000 keys or 16 MiB of them: ask for fewer,
                or for parts of the span.
        """
        start, end = arguments.span(start, end)
        found: list[Inbox] = await self._sender.send(
            ListInboxes(start, end, arguments.count(limit, "limit"), bool(ready))
        )
        return [
            InboxInfo(each.key, each.messages, Timestamp(each.oldest), each.held_up)
            for each in found
        ]

    async def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """What could not be executed, delivered or digested, oldest first, up to ``limit`` of it.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        found = await stored_letters(self._sender, arguments.count(limit, "limit"))
        return [letters.dead_letter(each, self.codec) for each in found]

    async def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Tries dead letters again; returns how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: that is no such id.
            Unavailable, CommitUnknown: as ``put``.
        """
        ids = letters.dead_letter_ids(dead_letter_ids)
        replayed: int = await commit_one(self._sender, b"", ReplayDeadLetters(ids))
        return replayed

    async def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Gives dead letters up for good; returns how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: that is no such id.
            Unavailable, CommitUnknown: as ``put``.
        """
        ids = letters.dead_letter_ids(dead_letter_ids)
        discarded: int = await commit_one(self._sender, b"", DiscardDeadLetters(ids))
        return discarded

    async def scheduled(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[Scheduled]:
        """The messages to, and updates of, keys in ``[start, end)`` that wait for their time, those
        that were postponed included.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many at most; those that are due first come first.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        start, end = arguments.span(start, end)
        most = arguments.count(limit, "limit")
        found = await stored_schedule(self._sender, start, end, most)
        return [letters.scheduled(each, self.codec) for each in found]

    async def cancel(self, ids: Iterable[str]) -> int:
        """Has messages and updates that wait for their time not take place.

        Args:
            ids: those of :meth:`scheduled`.

        Returns:
            How many were cancelled. Those that have been delivered or carried out meanwhile, or
            cancelled before, do not count; of each, one thing happens.

        Raises:
            ValueError: that is the id of nothing that was ever scheduled.
            Unavailable, CommitUnknown: as ``put``.
        """
        found = letters.scheduled_ids(ids)
        cancelled: int = await commit_one(self._sender, b"", CancelScheduled(found))
        return cancelled

    async def drain(self, timeout: float = 30.0) -> None:
        """Waits until every outbox entry that is due has been delivered or executed.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: that was not so in time.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
        try:
            await self._sender.send(AwaitQuiet(), timeout)
        except DeadlineExceeded:
            raise TimeoutError(
                f"outbox entries were still due after {timeout:g} s, or no node could tell"
            ) from None

    # --- the store itself

    async def status(self) -> Status:
        """How the store is: what became of all messages, who leads, whether its services run."""
        return await self._status()

    async def close(self) -> None:
        """Waits for what is under way, then lets go of the store: any further call raises
        ``DatabaseClosed``. Idempotent.
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
