"""The synchronous form of a transaction: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from postroom.client import transaction as asynchronous
from postroom.client.queues.sync_sending import QueueWrites
from postroom.client.sender import BlockingSender
from postroom.client.sync_iteration import iterate
from postroom.client.transaction import UNKNOWN
from postroom.client.trying import InboxWrites, Trying
from postroom.client.values import Message, Reaped
from postroom.client.writing import Writes
from postroom.kv.clock import Timestamp


class Transaction(Writes, QueueWrites, InboxWrites):
    """Reads, writes and messages that take effect together, or not at all.

    Use it as ``with db.begin() as tx``: it commits at the end of the block and rolls back on an
    exception. Once it has ended, every call raises ``TransactionClosed``; once its time is over,
    whatever asks the store raises ``TransactionExpired``.
    """

    __slots__ = ("_blocking", "_core", "_run")
    _core: asynchronous.Transaction

    def __init__(self, sender: BlockingSender, core: asynchronous.Transaction) -> None:
        core.share(self)
        self._blocking = sender
        self._run = sender.run
        self._core = core

    @property
    def id(self) -> bytes:
        """16 bytes, unique. Committing again with it is safe."""
        return self._core.id

    @property
    def read_timestamp(self) -> Timestamp | None:
        """Where it reads; ``None`` before its first read."""
        return self._core.read_timestamp

    @property
    def commit_timestamp(self) -> Timestamp | None:
        """Where it committed; ``None`` before that."""
        return self._core.commit_timestamp

    @property
    def trying(self) -> Trying:
        """What it has done about messages that were tried in vain."""
        return self._core.trying

    @property
    def closed(self) -> bool:
        """Whether it was committed or rolled back."""
        return self._core.closed

    def get(self, key: bytes) -> Any:
        """The value of ``key``, or ``None``.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack what is there.
            TransactionClosed, TransactionExpired: nothing was read.
        """
        found = self._core.known(key)
        return self._run(self._core.get(key)) if found is UNKNOWN else found

    def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys``, in their order; ``None`` for those that are absent.

        Raises:
            As ``get``.
        """
        return self._run(self._core.get_many(keys))

    def get_for_update(self, key: bytes) -> Any:
        """Like ``get``, but others that ask for ``key`` so wait until this transaction ends.

        Raises:
            TransactionConflict: another transaction kept it locked for too long, or changed it.
            Else as ``get``.
        """
        return self._run(self._core.get_for_update(key))

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, Any]]:
        """The pairs with ``start <= key < end``, its own writes included.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many pairs at most.
            reverse: from the end backwards.

        Raises:
            As ``get``, when the iterator comes to it.
        """
        return iterate(self._blocking, self._core.scan(start, end, limit=limit, reverse=reverse))

    def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were.

        Args:
            start: first key.
            end: first key that stays; ``None``: no bound.

        Raises:
            TransactionTooLarge: there are too many for one transaction.
            TransactionClosed, TransactionExpired: nothing was removed.
        """
        return self._run(self._core.delete_range(start, end))

    def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: the sum leaves 64 bits.
        """
        return self._run(self._core.increment(key, by))

    def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries as ``actual``.
            Else as ``put``.
        """
        self._run(self._core.conditional_put(key, value, expected))

    def reap_queue(
        self,
        key: bytes,
        max_results: int = 100,
        *,
        max_bytes: int | None = None,
        wait: float | None = None,
        max_attempts: int | None = None,
    ) -> Reaped:
        """Takes the oldest messages of ``key`` that nobody else holds.

        They are deleted when the transaction commits, and free again when it does not.

        Args:
            key: whose inbox.
            max_results: how many at most.
            max_bytes: how many bytes of them at most (but one message at least); 8 MiB if not told,
                since what is reaped counts towards the 16 MiB of the transaction.
            wait: seconds to wait for the first one to arrive.
            max_attempts: a message that has failed so often becomes a dead letter: when it is
                postponed, or when this transaction vanishes with it (its time passes, or its
                process is not heard of any more). What was tried before comes alone. ``None``:
                attempts are counted, and nothing becomes of that.

        Returns:
            The messages, as a sequence with the attribute ``more``; empty if there are none.

        Raises:
            WrongType: the codec cannot unpack one of them; its key is named.
            TransactionClosed, TransactionExpired: nothing was taken.
        """
        return self._run(
            self._core.reap_queue(
                key, max_results, max_bytes=max_bytes, wait=wait, max_attempts=max_attempts
            )
        )

    def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """The oldest messages in the inbox of ``key``, without consuming any.

        A read like any other, which the commit checks: it fails if other messages would be seen by
        then. Messages that other transactions hold are shown.

        Args:
            key: whose inbox.
            limit: how many messages at most; 10,000 of one inbox can be checked.

        Raises:
            TransactionTooLarge: these are too many.
        """
        return self._run(self._core.peek(key, limit))

    def commit(self) -> Timestamp:
        """Makes everything take effect; returns the timestamp at which it does.

        Raises:
            TransactionConflict: something it read has changed. Nothing happened; try again.
            CommitUnknown: the outcome is not known; ``commit`` again tells it.
            TransactionExpired, TransactionTooLarge, Unavailable: nothing happened.
        """
        return self._run(self._core.commit())

    def rollback(self) -> None:
        """Forgets everything. What it had locked or reaped is free again.

        Waits for nothing, and cannot fail.

        Raises:
            TransactionClosed: it was committed or rolled back already.
        """
        self._run(self._core.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._lifetime.closed:
            self._run(self._core.finish())
        elif not self._lifetime.closed:
            self._run(self._core.rollback())
