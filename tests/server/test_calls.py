"""The cost of a transaction with its node, in calls of functions, which do not vary as time does.

The bounds are the needs of the first release for the same transaction. With one transaction at a
time, the work of a proposal, and of a turn, is done once a transaction: its growth shows here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio

pytest.importorskip("plyvel")

TRANSACTIONS = 40
ATTEMPTS = 3
"""The number of tries: while a machine is held up, timers ring, and have turns of their own."""
VALUE = b"x" * 100


async def _outbox(db: postroom.aio.Database, number: int) -> None:
    async with db.begin() as tx:
        await tx.get(b"account/%d" % number)
        tx.put(b"account/%d" % number, VALUE)
        tx.enqueue_message(b"inbox/%d" % number, VALUE)
        tx.enqueue_update(postroom.Increment(b"counter/%d" % number))


async def _reap(db: postroom.aio.Database, number: int) -> None:
    async with db.begin() as tx:
        taken = await tx.reap_queue(b"queue", 100)
        assert len(taken) == 100
        tx.put(b"state", b"%d" % number)


async def _fill(db: postroom.aio.Database) -> None:
    for _ in range(TRANSACTIONS + 1):
        async with db.begin() as tx:
            for _ in range(100):
                tx.enqueue_message(b"queue", VALUE)


async def _calls(db: postroom.aio.Database, work: Callable[[Any, int], Awaitable[None]]) -> float:
    """Return the calls of functions, of Python and of C, for each transaction."""
    await work(db, 0)
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for number in range(1, TRANSACTIONS + 1):
            await work(db, number)
    finally:
        sys.setprofile(None)
    return calls / TRANSACTIONS


@pytest.mark.parametrize(("work", "calls_max"), [(_outbox, 519), (_reap, 1756)])
def test_a_transaction_takes_no_more_calls_than_in_the_first_release(
    tmp_path: Path, work: Callable[[Any, int], Awaitable[None]], calls_max: int
) -> None:
    async def run(attempt: int) -> float:
        async with await postroom.aio.open(tmp_path / str(attempt), engine="leveldb") as db:
            await _fill(db)
            return await _calls(db, work)

    calls = list[float]()
    while not calls or (min(calls) > calls_max and len(calls) < ATTEMPTS):
        calls.append(asyncio.run(run(len(calls))))
    assert min(calls) <= calls_max
