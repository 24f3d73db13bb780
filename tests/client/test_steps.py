"""The cost of a transaction for its client, in calls, which do not vary as time does.

The bounds are what the first release needed for the same transaction. A call that is made for a
feature which this transaction does not use shows here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from random import Random  # noqa: TID251 (seeded)
from types import SimpleNamespace
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client import database as asynchronous
from postroom.client import sync
from postroom.client.codec import resolve
from postroom.client.sender import TransactionIds
from postroom.client.values import Status
from postroom.limits import TURN_STEPS_MAX
from postroom.ranges.requests import Committed, Value

VALUE = b"x" * 100
TRANSACTIONS = 20


class _There:
    """An answer that is there."""

    def __await__(self) -> Generator[Any, None, Committed]:
        yield from ()
        return Committed(8, [None, None, None])


class Ready:
    """A sender that has every answer at once."""

    def __init__(self) -> None:
        self.random = Random(1)
        self.next_id = TransactionIds(b"a client").draw
        self.patience_seconds = 0.0
        self.ranges, self.range_of = SimpleNamespace(are_several=False), None

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        return _There()

    def try_get(self, key: bytes) -> Value | None:
        return Value(VALUE, 7)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError

    def now(self) -> int:
        return 5

    def reading(self) -> int:
        return 5

    def range_id(self, _: bytes) -> int:
        return 1

    def monotonic(self) -> float:
        return 0.0

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError


async def _status(_: Any) -> Status:
    raise AssertionError


async def _close() -> None:
    raise AssertionError


def _calls(act: Callable[[], None]) -> float:
    """Return how many calls ``act`` makes, of functions in Python and in C."""
    count = 0

    def counted(frame: object, event: str, what: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    act()
    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        for _ in range(TRANSACTIONS):
            act()
    finally:
        sys.setprofile(before)
    return count / TRANSACTIONS


@pytest.fixture
def core() -> asynchronous.CoreDatabase:
    return asynchronous.CoreDatabase(Ready(), resolve(None), _status, _close)


def test_a_transaction_of_threads_takes_no_more_calls_than_in_the_first_release(
    core: asynchronous.CoreDatabase,
) -> None:
    db = sync.CoreDatabase(Ready(), core)

    def transaction() -> None:
        with db.begin() as tx:
            tx.get(b"account")
            tx.put(b"account", VALUE)
            tx.enqueue_message(b"inbox", VALUE)
            tx.enqueue_update(postroom.Increment(b"counter"))

    assert _calls(transaction) <= 65  # it took 82


def test_a_transaction_of_a_loop_takes_no_more_calls_than_in_the_first_release(
    core: asynchronous.CoreDatabase,
) -> None:
    async def transaction() -> None:
        async with core.begin() as tx:
            await tx.get(b"account")
            tx.put(b"account", VALUE)
            tx.enqueue_message(b"inbox", VALUE)
            tx.enqueue_update(postroom.Increment(b"counter"))

    run = Ready().run
    assert _calls(lambda: run(transaction())) <= 60  # it took 71


def test_a_get_asks_nobody_where_the_value_is_known(core: asynchronous.CoreDatabase) -> None:
    db = sync.CoreDatabase(Ready(), core)
    assert _calls(lambda: db.get(b"account")) <= 12  # it took 14


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_task_that_only_reads_lets_others_run(in_a_transaction: bool) -> None:
    """Values that are known are answered at once, but only so many in a turn."""

    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.put(b"key", VALUE)
            other = asyncio.create_task(asyncio.sleep(0))
            for _ in range(3 * TURN_STEPS_MAX):
                if in_a_transaction:
                    async with db.begin() as tx:
                        await tx.get(b"key")
                else:
                    await db.get(b"key")
                if other.done():
                    return
            raise AssertionError("it had the loop for itself")

    asyncio.run(main())
