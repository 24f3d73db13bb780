"""The memory of a call is freed when it ends, and does not wait for the garbage collector.

Nothing that calls make may refer to itself: no part of a transaction, no record that the store has
of it for a turn, and no error. A transaction that does stays, with all its values, until the
collector comes, which costs more than the transaction did.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

import postroom
from postroom import aio

TIMES = 5


def outbox(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.get(b"a")
        tx.put(b"a", b"1")
        tx.increment(b"n", 2)
        tx.enqueue_message(b"inbox", b"m", headers={"n": 1})
        tx.enqueue_update(postroom.Increment(b"c", 1))


def enqueue(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.enqueue("work", b"p", group="g")


def reap(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.postpone(tx.reap_queue(b"inbox", 3), 0.0, "later")


def wait_in_vain(db: postroom.Database) -> None:
    with db.begin() as tx:
        assert not tx.reap_queue(b"nobody", 3, wait=0.001)


def claim(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.claim("work", 1)


def acknowledge(db: postroom.Database) -> None:
    enqueue(db)
    for message in db.queue("work").claim(1):
        message.acknowledge()
        with contextlib.suppress(postroom.LeaseLost):
            message.acknowledge()


def receive(db: postroom.Database) -> None:
    enqueue(db)
    messages = db.queue("work").receive(credit=5)
    next(messages).reject(delay=0.0)
    messages.close()


def read(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.get_for_update(b"a")
        tx.peek(b"inbox", 3)
        list(tx.scan(b"a", b"b"))
    with db.snapshot() as snapshot:
        snapshot.get_many([b"a", b"b"])


def conflict(db: postroom.Database) -> None:
    tx = db.begin()
    tx.get(b"a")
    db.increment(b"n", 1)
    db.put(b"a", b"2")
    tx.put(b"b", b"")
    with pytest.raises(postroom.TransactionConflict) as told:
        tx.commit()
    told._excinfo = None


def refused(db: postroom.Database) -> None:
    with contextlib.suppress(postroom.Invalid), db.begin() as tx:
        tx.enqueue("there is none", b"p")


def fails(db: postroom.Database) -> None:
    with contextlib.suppress(ArithmeticError), db.begin() as tx:
        tx.put(b"a", b"3")
        raise ArithmeticError


CALLS = (
    outbox, enqueue, reap, wait_in_vain, claim, acknowledge, receive, read, conflict, refused,
    fails,
)  # fmt: skip
"""All that a client can do with transactions, messages and queues."""


def left_by(call: Callable[[], object]) -> set[str]:
    """Return the kinds of objects that only the collector would free.

    It looks twice, if need be: a node of an earlier test may have ended in its thread meanwhile.
    """
    return _left_by(call) and _left_by(call)


def _left_by(call: Callable[[], object]) -> set[str]:
    call()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(TIMES):
            call()
        gc.collect()
        kinds = [type(each) for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    names = Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    # A connection that is made or given up meanwhile leaves something, but not each call does.
    return {
        name for name, count in names.items() if name.startswith("postroom.") and count >= TIMES
    }


def test_the_memory_of_calls_is_freed_with_them(db: postroom.Database) -> None:
    db.create_queue("work")
    left = {call.__name__: left_by(partial(call, db)) for call in CALLS}
    assert not any(left.values()), left


def test_the_memory_of_asyncio_calls_is_freed_with_them() -> None:
    with asyncio.Runner() as runner:
        db = runner.run(aio.open(":memory:"))
        runner.run(db.create_queue("work"))

        async def enqueue() -> None:
            async with db.begin() as tx:
                tx.put(b"a", b"1")
                tx.enqueue("work", b"p")

        async def wait_in_vain() -> None:
            async with db.begin() as tx:
                assert not await tx.reap_queue(b"nobody", 3, wait=0.001)

        async def conflict() -> None:
            with contextlib.suppress(postroom.TransactionConflict):
                async with db.begin() as tx:
                    await tx.get(b"a")
                    await db.put(b"a", b"2")
                    tx.put(b"b", b"")

        left = {
            call.__name__: left_by(lambda call=call: runner.run(call()))  # type: ignore[misc]
            for call in (enqueue, wait_in_vain, conflict)
        }
        runner.run(db.close())
    assert not any(left.values()), left
