"""The synchronous form of what operators ask of a database: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from postroom.client import administration as asynchronous
from postroom.client.sender import BlockingSender
from postroom.client.values import DeadLetter, InboxInfo, Scheduled, Status


class Administration:
    """An open store, as its operator sees it."""

    def __init__(self, sender: BlockingSender, core: asynchronous.Administration) -> None:
        self._run = sender.run
        self._administered = core

    # --- what waits

    def inboxes(
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
        """
        return self._run(self._administered.inboxes(start, end, limit=limit, ready=ready))

    def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """What could not be executed, delivered or digested, oldest first, up to ``limit`` of it.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        return self._run(self._administered.dead_letters(limit=limit))

    def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Tries dead letters again; returns how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: that is no such id.
            Unavailable, CommitUnknown: as ``put``.
        """
        return self._run(self._administered.replay(dead_letter_ids))

    def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Gives dead letters up for good; returns how many there were.

        Args:
            dead_letter_ids: those of :meth:`dead_letters`.

        Raises:
            ValueError: that is no such id.
            Unavailable, CommitUnknown: as ``put``.
        """
        return self._run(self._administered.discard(dead_letter_ids))

    def scheduled(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[Scheduled]:
        """The messages to, and updates of, keys in ``[start, end)`` that wait for their time.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many at most; those that are due first come first.

        Raises:
            WrongType: the codec cannot unpack one of the messages.
        """
        return self._run(self._administered.scheduled(start, end, limit=limit))

    def cancel(self, ids: Iterable[str]) -> int:
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
        return self._run(self._administered.cancel(ids))

    def drain(self, timeout: float = 30.0) -> None:
        """Waits until every outbox entry that is due has been delivered or executed.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: that was not so in time.
        """
        self._run(self._administered.drain(timeout))

    # --- the store itself

    def status(self) -> Status:
        """How the store is."""
        return self._run(self._administered.status())

    def close(self) -> None:
        """Waits for what is under way, then lets go of the store. Idempotent."""
        self._run(self._administered.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
