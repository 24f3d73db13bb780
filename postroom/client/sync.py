"""The synchronous forms: the same coroutines, run by the calling thread.

The logic is written once, in the asyncio forms (:mod:`postroom.client.database`,
:mod:`postroom.client.transaction`). Many threads may use one ``Database`` at once, and gain from
it: their commits share a sync. A ``Transaction`` belongs to one thread at a time.

Any method that asks the store may also raise ``Unavailable`` (nothing happened: try again) and
``AccessDenied``. It raises ``Invalid`` once the database is closed, or in the child of a fork.
Arguments of the wrong Python type are a ``TypeError``, impossible ones a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from postroom.client import transaction as asynchronous
from postroom.client.blocking import blocking, closable, iterate, iterating
from postroom.client.bridge import bridged
from postroom.client.buffer import WriteBuffer
from postroom.client.database import CoreDatabase as AsynchronousDatabase
from postroom.client.functions import check_quickly
from postroom.client.pages import Page
from postroom.client.queues.sync_queue import QueueWrites
from postroom.client.reaping import InboxWrites, Postponing
from postroom.client.sender import BlockingSender
from postroom.client.sync_parts import (
    Administration,
    BulkOfDatabase,
    Snapshot,
)
from postroom.client.transaction import UNKNOWN
from postroom.kv.clock import Timestamp
from postroom.limits import TRANSACTION_SECONDS_MAX


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
        if self._lifetime.ended_by:
            self._lifetime.check_is_users()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and (not self._lifetime.closed or self._lifetime.may_end):
                self._blocking.run(self._core.finish())
            elif self._lifetime.may_end:
                self._blocking.run(self._core.rollback())
        except BaseException:  # an interrupt, perhaps before the commit was sent
            self._core.give_up_unsent()
            raise


P = ParamSpec("P")
T = TypeVar("T")


async def _awaited(timestamp: Awaitable[T]) -> T:
    return await timestamp


class CoreDatabase(
    Administration,
    BulkOfDatabase,
):
    """The calls of the client, in the synchronous form.

    :mod:`postroom.databases` adds the calls of the layers: then it is what applications get.
    """

    _core: AsynchronousDatabase

    def __init__(self, sender: BlockingSender, core: AsynchronousDatabase) -> None:
        self._blocking = sender
        self._core = core

    @property
    def sender(self) -> BlockingSender:
        """Return the sender that asks the store, for layers on top."""
        return self._blocking

    @property
    def core(self) -> AsynchronousDatabase:
        """Return the asyncio form of this database, whose coroutines :meth:`wait` runs.

        For layers on top.
        """
        return self._core

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine over the asyncio form to its end in the calling thread.

        For layers on top: they are written once, over the asyncio form.

        Args:
            work: it waits for nothing but calls of the asyncio form.
        """
        return self._blocking.run(work)

    def on_loop(self, threads: Executor) -> AsynchronousDatabase:
        """Return the same store for coroutines on the running event loop: workers use it.

        For layers on top.

        Args:
            threads: each answer that is waited for takes one.
        """
        return self._core.through(bridged(self._blocking, threads))

    def reach_through(self, wrap: Callable[[Any], Any]) -> None:
        """Send all later requests through ``wrap(sender)``.

        For layers on top, such as tracing.
        """
        self._blocking = wrap(self._blocking)
        self._core = self._core.through(self._blocking)

    # --- reading

    def get(self, key: bytes, *, at: int | None = None) -> Any:
        """Return the newest committed value of ``key``, or the one at ``at``; ``None`` if absent.

        Args:
            key: up to 8 KiB.
            at: a timestamp from :meth:`now` or from a commit.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack the stored value.
            SnapshotTooOld: the versions at ``at`` are collected already.
        """
        found = self._core.known(key) if at is None else UNKNOWN
        return self._blocking.run(self._core.get(key, at=at)) if found is UNKNOWN else found

    get_many = blocking(AsynchronousDatabase.get_many)

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> Iterator[tuple[bytes, Any]]:
        """Return the pairs with ``start <= key < end`` at one timestamp, however long it takes.

        Args:
            start: first key.
            end: first key after the span; ``None``: no bound.
            limit: how many pairs at most.
            reverse: whether to go from the end backwards.
            at: the timestamp to read at, instead of now.

        Raises:
            KeyTooLarge: at once.
            WrongType, SnapshotTooOld: when the iterator reaches the pair or page concerned.
        """
        found = self._core.scan_pages(start, end, limit=limit, reverse=reverse, at=at)
        return self._unpacked(iterate(self._blocking, found))

    def _unpacked(self, found: Iterator[Page]) -> Iterator[tuple[bytes, Any]]:
        for page in found:
            yield from page.unpacked(self._core.codec)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Read at one timestamp: ``with db.snapshot() as snapshot``.

        Returns:
            A context manager, which gives a :class:`Snapshot`.

        Raises:
            Unavailable: nothing can be read now.
        """
        manager = self._core.snapshot()
        core = self._blocking.run(manager.__aenter__())
        try:
            yield Snapshot(self._blocking, core)
        finally:
            self._blocking.run(manager.__aexit__(None, None, None))

    watch = closable(AsynchronousDatabase.watch)
    accounting = blocking(AsynchronousDatabase.accounting)

    # --- writing: transactions of one request

    put = blocking(AsynchronousDatabase.put)
    delete = blocking(AsynchronousDatabase.delete)
    delete_range = blocking(AsynchronousDatabase.delete_range)
    increment = blocking(AsynchronousDatabase.increment)
    conditional_put = blocking(AsynchronousDatabase.conditional_put)

    # --- transactions

    def begin(
        self, *, timeout: float = TRANSACTION_SECONDS_MAX, retry_id: bytes | None = None
    ) -> Transaction:
        """Return a new transaction: ``with db.begin() as tx``.

        Args:
            timeout: seconds that it may stay open; 60 at most.
            retry_id: the ``retry_id`` of an earlier transaction whose outcome is not known, from
                any client. If that one has committed, the commit of this one changes nothing and
                returns its timestamp. Its first write or message must be to the same key.

        Raises:
            ValueError: ``timeout`` is not above 0 and at most 60.
            Invalid: ``retry_id`` is none.
        """
        core = self._core.begin(timeout=timeout, retry_id=retry_id)
        return Transaction(self._blocking, core)

    def run(
        self,
        function: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call ``function(tx, *args, **kwargs)``, commit, and return the result of the call.

        On ``Retryable`` it starts over, with a back-off, for a minute. The time that it waits for
        messages (``reap_queue``) does not count. On ``CommitUnknown`` it commits again with the
        same id, which tells the outcome, unless the store no longer keeps it. An exception of
        ``function`` comes through, and nothing was changed.

        ``function`` may be called several times, so it must have no effects but those of its
        transaction. It may end the transaction itself (``commit``, ``rollback``); once it has
        committed it is not called again.

        Args:
            function: its first argument is the transaction.
            *args: further arguments of ``function``.
            **kwargs: further arguments of ``function`` by name.

        Raises:
            Retryable: a minute was not enough. Nothing was changed.
            CommitUnknown: the store can no longer tell whether it was committed.
            Invalid: the transaction can never succeed. Nothing was changed.
            TypeError: ``function`` is a class or a generator function, or returns something that
                still has to run. Nothing was changed.
        """

        check_quickly(function, "the argument of run")

        def call(tx: asynchronous.Transaction) -> T:
            return function(Transaction(self._blocking, tx), *args, **kwargs)

        result: T = self._blocking.run(self._core.repeat(call, function))
        return result

    # --- messages

    peek = blocking(AsynchronousDatabase.peek)

    def reap_queue(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: messages are reaped only in a transaction.

        Args:
            *args: not used.
            **kwargs: not used.

        Raises:
            NotInTransaction: always.
        """
        return self._core.reap_queue(*args, **kwargs)

    # --- the store itself

    def now(self) -> Timestamp:
        """Return a timestamp above every commit so far and below every later one."""
        timestamp = self._core.now()
        return (
            timestamp
            if isinstance(timestamp, Timestamp)
            else self._blocking.run(_awaited(timestamp))
        )
