"""The synchronous forms: the same coroutines, run by the calling thread.

What happens is written once, in the asyncio forms (:mod:`postroom.client.database`,
:mod:`postroom.client.transaction`). One ``Database`` may be used from many threads at once, and
gains from it: their commits share a sync. A ``Transaction`` belongs to one thread at a time.

Any method that asks the store may also raise ``Unavailable`` (nothing happened: try again),
``AccessDenied``, and ``Invalid`` once the database is closed, or in the child of a fork. Arguments
of the wrong Python type are a ``TypeError``, impossible ones a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroom.client import database as asynchronous
from postroom.client import transaction as asynchronous_transaction
from postroom.client.bridge import BridgedSender
from postroom.client.pages import Page
from postroom.client.queues.sync_sending import QueuesOfDatabase
from postroom.client.search.sync_index import SearchOfDatabase
from postroom.client.sender import BlockingSender
from postroom.client.sync_administration import Administration
from postroom.client.sync_bulk import BulkOfDatabase
from postroom.client.sync_images import ImagesOfDatabase
from postroom.client.sync_iteration import iterate
from postroom.client.sync_snapshot import Snapshot
from postroom.client.sync_staging import StagingOfDatabase
from postroom.client.sync_transaction import Transaction
from postroom.client.transaction import UNKNOWN
from postroom.client.values import (
    Change,
    Message,
)
from postroom.kv.clock import Timestamp
from postroom.limits import TRANSACTION_SECONDS_MAX

P = ParamSpec("P")
T = TypeVar("T")


async def _awaited(moment: Awaitable[T]) -> T:
    return await moment


class Database(
    Administration,
    QueuesOfDatabase,
    BulkOfDatabase,
    StagingOfDatabase,
    ImagesOfDatabase,
    SearchOfDatabase,
):
    """A store: embedded, or reached over the network. Made by ``open`` or ``connect``."""

    def __init__(self, sender: BlockingSender, core: asynchronous.Database) -> None:
        Administration.__init__(self, sender, core)
        QueuesOfDatabase.__init__(self, sender, core)
        BulkOfDatabase.__init__(self, sender, core)
        StagingOfDatabase.__init__(self, sender)
        ImagesOfDatabase.__init__(self, sender)
        SearchOfDatabase.__init__(self, sender, core)
        self._sender = sender
        self._core = core

    @property
    def sender(self) -> BlockingSender:
        """How the store is asked: for what is built on top."""
        return self._sender

    def on_loop(self, threads: Executor) -> asynchronous.Database:
        """The same store for coroutines on the running event loop: what workers are built on.

        Args:
            threads: each answer that is waited for takes one.
        """
        return self._core.through(BridgedSender(self._sender, threads))

    # --- reading

    def get(self, key: bytes, *, at: int | None = None) -> Any:
        """The newest committed value of ``key``, or the one as of ``at``; ``None`` if absent.

        Args:
            key: up to 8 KiB.
            at: a timestamp that :meth:`now` or a commit has told.

        Raises:
            KeyTooLarge: the key has more than 8 KiB.
            WrongType: the codec cannot unpack what is there.
            SnapshotTooOld: versions of ``at`` are collected already.
        """
        found = self._core.known(key) if at is None else UNKNOWN
        return self._run(self._core.get(key, at=at)) if found is UNKNOWN else found

    def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """The values of ``keys`` at one timestamp, in their order; ``None`` for absent ones.

        Raises:
            As ``get``.
        """
        return self._run(self._core.get_many(keys, at=at))

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> Iterator[tuple[bytes, Any]]:
        """The pairs with ``start <= key < end`` at one timestamp, however long it takes.

        Args:
            start: first key.
            end: first key that is not wanted any more; ``None``: no bound.
            limit: how many pairs at most.
            reverse: from the end backwards.
            at: as of this timestamp instead of now.

        Raises:
            As ``get``, when the iterator comes to it.
        """
        found = self._core.scan_pages(start, end, limit=limit, reverse=reverse, at=at)
        return self._unpacked(iterate(self._sender, found))

    def _unpacked(self, found: Iterator[Page]) -> Iterator[tuple[bytes, Any]]:
        for page in found:
            yield from page.unpacked(self._core.codec)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Reads at one timestamp: ``with db.snapshot() as snapshot``."""
        manager = self._core.snapshot()
        core = self._run(manager.__aenter__())
        try:
            yield Snapshot(self._sender, core)
        finally:
            self._run(manager.__aexit__(None, None, None))

    def watch(
        self, start: bytes, end: bytes | None = None, *, after: int | None = None
    ) -> Iterator[Change]:
        """The committed changes of a key, or of a span, in order, from now or ``after`` on, for
        ever.

        Args:
            start: the key; or the first key of a span if ``end`` is given.
            end: first key beyond the span.
            after: go on after this timestamp. Changes of one commit share theirs: go on after the
                last one of which all have been seen.

        Raises:
            SnapshotTooOld: changes since ``after`` are collected already.
            WrongType: the codec cannot unpack one of the values.
        """
        return iterate(self._sender, self._core.watch(start, end, after=after))

    def accounting(self, prefix: bytes) -> dict[str, int]:
        """The sums of the metrics that ``Accounting`` has added under ``prefix``.

        Raises:
            KeyTooLarge: the prefix has more than 8 KiB.
        """
        return self._run(self._core.accounting(prefix))

    # --- writing: transactions of one request

    def put(self, key: bytes, value: Any) -> None:
        """Sets ``key`` to ``value``.

        Raises:
            TypeError: ``value`` is nothing that the codec packs; without a codec: no ``bytes``.
            KeyTooLarge, ValueTooLarge: the key has more than 8 KiB, the value more than 1 MiB.
            Unavailable: nothing was changed.
            CommitUnknown: it may have been.
        """
        self._run(self._core.put(key, value))

    def delete(self, key: bytes) -> None:
        """Removes ``key``, if it is there.

        Raises:
            KeyTooLarge, Unavailable, CommitUnknown: as ``put``.
        """
        self._run(self._core.delete(key))

    def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were.

        Args:
            start: first key.
            end: first key that stays; ``None``: no bound.

        Raises:
            TransactionTooLarge: there are too many for one transaction. Nothing was changed.
            Unavailable, CommitUnknown: as ``put``.
        """
        return self._run(self._core.delete_range(start, end))

    def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum.

        Raises:
            WrongType: ``key`` holds no integer.
            Overflow: the sum leaves 64 bits.
            Unavailable: nothing was changed.
            CommitUnknown: it may have been; trying again may count twice (``run`` does not).
        """
        return self._run(self._core.increment(key, by))

    def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing).

        Raises:
            ConditionFailed: it holds something else, which the error carries as ``actual``.
            Else as ``put``.
        """
        self._run(self._core.conditional_put(key, value, expected))

    # --- transactions

    def begin(self, *, timeout: float = TRANSACTION_SECONDS_MAX) -> Transaction:
        """A new transaction: ``with db.begin() as tx``.

        Args:
            timeout: seconds that it may stay open; 60 at most.

        Raises:
            ValueError: ``timeout`` is not above 0 and at most 60.
        """
        return Transaction(self._sender, self._core.begin(timeout=timeout))

    def run(
        self,
        function: Callable[Concatenate[Transaction, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Calls ``function(tx, *args, **kwargs)``, commits, and returns what it returned.

        On ``Retryable`` it starts over, with a back-off, for a minute; on ``CommitUnknown`` it
        commits again with the same id, which tells the outcome, unless so much time has passed that
        nobody can tell any more. So ``function`` may be called several times: it must have no
        effects but those of its transaction.

        Args:
            function: its first argument is the transaction.
            args, kwargs: the others.

        Raises:
            whatever ``function`` raises: nothing was changed.
            Retryable: a minute was not enough. Nothing was changed.
            CommitUnknown: nobody can tell any more whether it was committed.
            Invalid: the transaction can never succeed as it stands. Nothing was changed.
        """

        def call(tx: asynchronous_transaction.Transaction) -> T:
            return function(Transaction(self._sender, tx), *args, **kwargs)

        result: T = self._run(self._core.repeat(call))
        return result

    # --- messages

    def peek(self, key: bytes, limit: int = 100, *, at: int | None = None) -> list[Message]:
        """The oldest messages in the inbox of ``key`` at one timestamp, without consuming any.

        Args:
            key: whose inbox.
            limit: how many messages at most; how many bytes they have does not matter.
            at: as of this timestamp instead of now.

        Raises:
            SnapshotTooOld: what the inbox held at ``at`` is collected already.
            KeyTooLarge, WrongType: as ``get``.
        """
        return self._run(self._core.peek(key, limit, at=at))

    def reap_queue(self, *args: Any, **kwargs: Any) -> Any:
        """Works only in a transaction.

        Raises:
            NotInTransaction: always.
        """
        return self._core.reap_queue(*args, **kwargs)

    # --- the store itself

    def now(self) -> Timestamp:
        """A timestamp above that of every commit so far, and below that of every later one."""
        moment = self._core.now()
        return moment if isinstance(moment, Timestamp) else self._run(_awaited(moment))


__all__ = ["Database", "Snapshot", "Transaction"]
