"""``@transactional``: one function that runs by itself, or as a part of a transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import postroom
import postroom.aio
from tests.client.stores import Store


@postroom.transactional
def withdraw(tx: Any, account: bytes, amount: int) -> int:
    """Take money."""
    left: int = tx.increment(account, -amount)
    if left < 0:
        raise ValueError("not enough")
    return left


@postroom.transactional
def transfer(tx: Any, source: bytes, target: bytes, amount: int = 1) -> None:
    withdraw(tx, source, amount)
    tx.increment(target, amount)


@postroom.aio.transactional
async def deposit(tx: Any, account: bytes, amount: int) -> int:
    total: int = await tx.increment(account, amount)
    return total


@postroom.aio.transactional
async def deposit_twice(tx: Any, account: bytes, amount: int) -> int:
    await deposit(tx, account, amount)
    total: int = await deposit(tx, account, amount)
    return total


def balance(db: postroom.Database, account: bytes) -> int:
    return postroom.integer(db.get(account))


def test_given_a_database_it_runs_in_a_transaction(db: postroom.Database) -> None:
    db.increment(b"a", 5)
    assert withdraw(db, b"a", 2) == 3
    assert balance(db, b"a") == 3
    with pytest.raises(ValueError, match="not enough"):
        withdraw(db, b"a", amount=4)
    assert balance(db, b"a") == 3


def test_given_a_transaction_it_joins_it(db: postroom.Database) -> None:
    db.increment(b"a", 5)
    tx = db.begin()
    transfer(tx, b"a", b"b", amount=2)
    transfer(tx, b"a", b"b")
    assert balance(db, b"b") == 0
    tx.commit()
    assert (balance(db, b"a"), balance(db, b"b")) == (2, 3)


def test_functions_compose_into_one_transaction(db: postroom.Database) -> None:
    db.increment(b"a", 1)
    with pytest.raises(ValueError, match="not enough"):
        transfer(db, b"a", b"b", 2)
    transfer(db, b"a", b"b")
    assert (balance(db, b"a"), balance(db, b"b")) == (0, 1)


def test_a_transactional_function_is_tried_again_on_conflict(store: Store) -> None:
    calls = []

    @postroom.transactional
    def disturbed(tx: Any) -> None:
        calls.append(tx.increment(b"n"))
        if len(calls) == 1:
            store.db.increment(b"n", 10)

    disturbed(store.db)
    assert calls == [1, 11]


def test_coroutines_work_alike() -> None:
    async def scenario() -> None:
        async with await postroom.aio.open(":memory:") as db:
            assert await deposit(db, b"a", 2) == 2
            assert await deposit_twice(db, b"a", 2) == 6
            async with db.begin() as tx:
                assert await deposit(tx, b"a", 1) == 7
                await tx.rollback()
            assert postroom.integer(await db.get(b"a")) == 6

    asyncio.run(scenario())


def test_a_transactional_function_keeps_its_name_and_documentation() -> None:
    assert (withdraw.__name__, withdraw.__doc__) == ("withdraw", "Take money.")
