"""The synchronous form of a transaction: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from postroom.client import transaction as asynchronous
from postroom.client.blocking import blocking, iterating
from postroom.client.postponing import InboxWrites, Postponing
from postroom.client.queues.sync_queue import QueueWrites
from postroom.client.sender import BlockingSender
from postroom.client.transaction import UNKNOWN
from postroom.client.writing import WriteBuffer
from postroom.kv.clock import Timestamp


class Transaction(WriteBuffer, QueueWrites, InboxWrites):
    """Reads, writes and messages that take effect together, or not at all.

    Use it as ``with db.begin() as tx``: it commits at the end of the block and rolls back on an
    exception. Once it has ended, every call raises ``TransactionClosed``. Once its time is over,
    every call that asks the store raises ``TransactionExpired``.

    Examples:
        >>> with db.begin() as tx:
        ...     tx.put(b"a", b"1")
        ...     tx.get(b"a")
        b'1'
        >>> with db.begin() as tx:
        ...     tx.put(b"a", b"2")
        ...     tx.rollback()
        >>> db.get(b"a")
        b'1'
    """

    __slots__ = ("_blocking", "_core")
    _blocking: BlockingSender
    _core: asynchronous.Transaction

    def __init__(self, sender: BlockingSender, core: asynchronous.Transaction) -> None:
        core.share(self)
        self._blocking = sender
        self._core = core

    @property
    def core(self) -> asynchronous.Transaction:
        """Return the asyncio form of this transaction, for layers on top."""
        return self._core

    @property
    def id(self) -> bytes:
        """Return the id: 16 bytes, unique. Another commit with the same id is safe."""
        return self._core.id

    @property
    def retry_id(self) -> bytes:
        """Return the id with which ``db.begin(retry_id=...)`` begins another try of it.

        Any client may make that try, for 75 s. It is safe if the outcome of this
        transaction is not known: the two commit once.
        """
        return self._core.retry_id

    @property
    def read_timestamp(self) -> Timestamp | None:
        """Return the timestamp at which it reads; ``None`` before its first read."""
        return self._core.read_timestamp

    @property
    def commit_timestamp(self) -> Timestamp | None:
        """Return the timestamp at which it committed; ``None`` before that."""
        return self._core.commit_timestamp

    @property
    def postponing(self) -> Postponing:
        """Return the part that postpones and buries messages after failed attempts.

        For layers on top.
        """
        return self._core.postponing

    @property
    def closed(self) -> bool:
        """Return whether it has ended, or is being committed."""
        return self._core.closed

    def get(self, key: bytes) -> Any:
        """Return the value of ``key``, or ``None``.

        Args:
            key: up to 8 KiB.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack the stored value.
            TransactionClosed, TransactionExpired: nothing was read.
        """
        found = self._core.known(key)
        return self._blocking.run(self._core.get(key)) if found is UNKNOWN else found

    get_many = blocking(asynchronous.Transaction.get_many)
    get_for_update = blocking(asynchronous.Transaction.get_for_update)
    scan = iterating(asynchronous.Transaction.scan)
    delete_range = blocking(asynchronous.Transaction.delete_range)
    increment = blocking(asynchronous.Transaction.increment)
    conditional_put = blocking(asynchronous.Transaction.conditional_put)
    reap_queue = blocking(asynchronous.Transaction.reap_queue)
    peek = blocking(asynchronous.Transaction.peek)
    commit = blocking(asynchronous.Transaction.commit)
    rollback = blocking(asynchronous.Transaction.rollback)

    def __enter__(self) -> Self:
        self._lifetime.check_is_users()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._lifetime.may_end:
            try:
                self._blocking.run(self._core.finish())
            except BaseException:  # an interrupt, perhaps before the commit was sent
                self._core.give_up_unsent()
                raise
        elif self._lifetime.may_end:
            self._blocking.run(self._core.rollback())
