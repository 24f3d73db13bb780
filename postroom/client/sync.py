"""The synchronous forms: the same coroutines, run by the calling thread.

Thin on purpose: what a method does, its arguments and its errors are documented at the asyncio form
of the same name (:mod:`postroom.client.database`, :mod:`postroom.client.transaction`). One
``Database`` may be used from many threads at once, and gains from it: their commits share a sync. A
``Transaction`` belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from postroom.client import database as asynchronous
from postroom.client import transaction as asynchronous_transaction
from postroom.client.pages import Page
from postroom.client.sender import BlockingSender
from postroom.client.values import (
    Change,
    DeadLetter,
    InboxInfo,
    Message,
    Reaped,
    Scheduled,
    Status,
)
from postroom.kv.clock import Timestamp
from postroom.limits import TRANSACTION_SECONDS_MAX
from postroom.ranges.requests import UpdateRequest

T = TypeVar("T")


def _iterate(sender: BlockingSender, items: AsyncIterator[T]) -> Iterator[T]:
    """``items`` one by one; closed with the generator."""
    try:
        while True:
            try:
                item = sender.run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            sender.run(close())


async def _awaited(moment: Awaitable[T]) -> T:
    return await moment


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


class Transaction:
    """Reads, writes and messages that take effect together: ``with db.begin() as tx``."""

    __slots__ = ("_core", "_run", "_sender")

    def __init__(self, sender: BlockingSender, core: asynchronous_transaction.Transaction) -> None:
        self._sender = sender
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
    def closed(self) -> bool:
        """Whether it was committed or rolled back."""
        return self._core.closed

    def get(self, key: bytes) -> Any:
        """The value of ``key``, or ``None``."""
        return self._run(self._core.get(key))

    def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys``, in their order; ``None`` for those that are absent."""
        return self._run(self._core.get_many(keys))

    def get_for_update(self, key: bytes) -> Any:
        """Like ``get``, but others that ask for ``key`` so wait until this transaction ends."""
        return self._run(self._core.get_for_update(key))

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, Any]]:
        """The pairs with ``start <= key < end``, its own writes included."""
        return _iterate(self._sender, self._core.scan(start, end, limit=limit, reverse=reverse))

    def put(self, key: bytes, value: Any) -> None:
        """Sets ``key`` to ``value`` when the transaction commits."""
        self._core.put(key, value)

    def delete(self, key: bytes) -> None:
        """Removes ``key`` when the transaction commits, if it is there."""
        self._core.delete(key)

    def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were."""
        return self._run(self._core.delete_range(start, end))

    def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum."""
        return self._run(self._core.increment(key, by))

    def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing)."""
        self._run(self._core.conditional_put(key, value, expected))

    def enqueue_message(
        self,
        key: bytes,
        value: Any,
        *,
        headers: dict[str, Any] | None = None,
        deliver_at: Any = None,
    ) -> None:
        """Sends ``value`` to the inbox of ``key`` when, and only if, the transaction commits."""
        self._core.enqueue_message(key, value, headers=headers, deliver_at=deliver_at)

    def enqueue_update(self, request: UpdateRequest, *, execute_at: Any = None) -> None:
        """Has ``request`` carried out once, soon after the transaction commits."""
        self._core.enqueue_update(request, execute_at=execute_at)

    def reap_queue(
        self,
        key: bytes,
        max_results: int = 100,
        *,
        max_bytes: int | None = None,
        wait: float | None = None,
    ) -> Reaped:
        """Takes the oldest messages of ``key`` that nobody else holds; gone when it commits."""
        return self._run(self._core.reap_queue(key, max_results, max_bytes=max_bytes, wait=wait))

    def commit(self) -> Timestamp:
        """Makes everything take effect; returns the timestamp at which it does."""
        return self._run(self._core.commit())

    def rollback(self) -> None:
        """Forgets everything. What it had locked or reaped is free again."""
        self._run(self._core.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._core.__aexit__(kind, error, trace))


class Snapshot:
    """Reads at one timestamp, protected from garbage collection while it is open."""

    def __init__(self, sender: BlockingSender, core: asynchronous.Snapshot) -> None:
        self._sender = sender
        self._core = core

    @property
    def timestamp(self) -> Timestamp:
        """Where it reads."""
        return self._core.timestamp

    def get(self, key: bytes) -> Any:
        """The value of ``key`` then."""
        return self._sender.run(self._core.get(key))

    def get_many(self, keys: Iterable[bytes]) -> list[Any]:
        """The values of ``keys`` then."""
        return self._sender.run(self._core.get_many(keys))

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, Any]]:
        """The pairs in ``[start, end)`` then."""
        return _iterate(self._sender, self._core.scan(start, end, limit=limit, reverse=reverse))

    def peek(self, key: bytes, limit: int = 100) -> list[Message]:
        """The inbox of ``key`` then."""
        return self._sender.run(self._core.peek(key, limit))


class Database:
    """A store: embedded, or reached over the network. Made by ``open`` or ``connect``."""

    def __init__(self, sender: BlockingSender, core: asynchronous.Database) -> None:
        self._sender = sender
        self._run = sender.run
        self._core = core

    def get(self, key: bytes, *, at: int | None = None) -> Any:
        """The newest committed value of ``key``, or the one as of ``at``; ``None`` if absent."""
        return self._run(self._core.get(key, at=at))

    def get_many(self, keys: Iterable[bytes], *, at: int | None = None) -> list[Any]:
        """The values of ``keys`` at one timestamp, in their order; ``None`` for absent ones."""
        return self._run(self._core.get_many(keys, at=at))

    def put(self, key: bytes, value: Any) -> None:
        """Sets ``key`` to ``value``."""
        self._run(self._core.put(key, value))

    def delete(self, key: bytes) -> None:
        """Removes ``key``, if it is there."""
        self._run(self._core.delete(key))

    def delete_range(self, start: bytes, end: bytes | None) -> int:
        """Removes the keys with ``start <= key < end``; returns how many there were."""
        return self._run(self._core.delete_range(start, end))

    def increment(self, key: bytes, by: int = 1) -> int:
        """Adds ``by`` to the 64-bit integer at ``key`` (absent: 0); returns the sum."""
        return self._run(self._core.increment(key, by))

    def conditional_put(self, key: bytes, value: Any, expected: Any) -> None:
        """Sets ``key`` to ``value`` if it holds ``expected`` (``None``: nothing)."""
        self._run(self._core.conditional_put(key, value, expected))

    def scan(
        self,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        at: int | None = None,
    ) -> Iterator[tuple[bytes, Any]]:
        """The pairs with ``start <= key < end``, consistent however long it takes."""
        found = self._core.scan_pages(start, end, limit=limit, reverse=reverse, at=at)
        return self._unpacked(_iterate(self._sender, found))

    def _unpacked(self, found: Iterator[Page]) -> Iterator[tuple[bytes, Any]]:
        for page in found:
            yield from page.unpacked(self._core.codec)

    def begin(self, *, timeout: float = TRANSACTION_SECONDS_MAX) -> Transaction:
        """A new transaction: ``with db.begin() as tx``."""
        return Transaction(self._sender, self._core.begin(timeout=timeout))

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls ``function(tx, *args, **kwargs)``, commits, and retries while that makes sense."""

        def call(tx: asynchronous_transaction.Transaction) -> T:
            return function(Transaction(self._sender, tx), *args, **kwargs)

        result: T = self._run(self._core.run(call))
        return result

    def peek(self, key: bytes, limit: int = 100, *, at: int | None = None) -> list[Message]:
        """The oldest messages in the inbox of ``key``, without consuming any."""
        return self._run(self._core.peek(key, limit, at=at))

    def inboxes(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[InboxInfo]:
        """The keys in ``[start, end)`` with waiting messages, those with the oldest one first."""
        return self._run(self._core.inboxes(start, end, limit=limit))

    def reap_queue(self, *args: Any, **kwargs: Any) -> Any:
        """Works only in a transaction: raises ``NotInTransaction``."""
        return self._core.reap_queue(*args, **kwargs)

    def accounting(self, prefix: bytes) -> dict[str, int]:
        """The sums of the metrics that ``Accounting`` has added under ``prefix``."""
        return self._run(self._core.accounting(prefix))

    def dead_letters(self, *, limit: int = 100) -> list[DeadLetter]:
        """What could not be executed or delivered, oldest first."""
        return self._run(self._core.dead_letters(limit=limit))

    def replay(self, dead_letter_ids: Iterable[str]) -> int:
        """Tries dead letters again; returns how many there were."""
        return self._run(self._core.replay(dead_letter_ids))

    def discard(self, dead_letter_ids: Iterable[str]) -> int:
        """Gives dead letters up for good; returns how many there were."""
        return self._run(self._core.discard(dead_letter_ids))

    def scheduled(
        self, start: bytes = b"", end: bytes | None = None, *, limit: int = 100
    ) -> list[Scheduled]:
        """The messages to, and updates of, keys in ``[start, end)`` that wait for their time."""
        return self._run(self._core.scheduled(start, end, limit=limit))

    def cancel(self, ids: Iterable[str]) -> int:
        """Has messages and updates that wait for their time not take place."""
        return self._run(self._core.cancel(ids))

    def drain(self, timeout: float = 30.0) -> None:
        """Waits until every outbox entry that is due has been delivered or executed."""
        self._run(self._core.drain(timeout))

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
        """The committed changes of a key, or of a span, in order, from now or ``after`` on."""
        return _iterate(self._sender, self._core.watch(start, end, after=after))

    def now(self) -> Timestamp:
        """A timestamp above every one so far."""
        moment = self._core.now()
        return moment if isinstance(moment, Timestamp) else self._run(_awaited(moment))

    def status(self) -> Status:
        """How the store is."""
        return self._run(self._core.status())

    def close(self) -> None:
        """Waits for what is under way, then lets go of the store. Idempotent."""
        self._run(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
