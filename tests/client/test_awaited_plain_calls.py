"""Plain calls that are awaited: the error names the call."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.client.functions import PLAIN_CALLS

PLAIN: list[Any] = [
    lambda tx: tx.put(b"k", b"v"),
    lambda tx: tx.delete(b"k"),
    lambda tx: tx.enqueue_message(b"k", b"v"),
    lambda tx: tx.enqueue_update(postroom.Increment(b"n")),
    lambda tx: tx.acknowledge("q", "i"),
    lambda tx: tx.cancel("q", "i"),
]
NAMES = [
    "put", "delete", "enqueue_message", "enqueue_update", "enqueue", "when_done", "acknowledge",
    "reject", "reschedule", "cancel", "postpone", "bury",
]  # fmt: skip


def told_in_asyncio(call: Any) -> str:
    """Return the error of an awaited call in a transaction, as it is printed."""

    async def main() -> str:
        async with await postroom.aio.open(":memory:") as db:
            await db.create_queue("q")
            with pytest.raises(TypeError) as told:
                async with db.begin() as tx:
                    await call(tx)
            assert await db.get(b"k") is None
            return "".join(traceback.format_exception(told.value))

    return asyncio.run(main())


def test_an_awaited_enqueue_names_the_call() -> None:
    worker = postroom.Worker()
    task = worker.task("q")(lambda message, tx: None)
    for call in (lambda tx: tx.enqueue("q", b""), lambda tx: task.enqueue(tx, b"")):
        assert "tx.enqueue(...) and task.enqueue(tx, ...) are plain calls" in told_in_asyncio(call)


@pytest.mark.parametrize("call", PLAIN)
def test_an_awaited_call_that_returns_nothing_is_explained(call: Any) -> None:
    assert PLAIN_CALLS in told_in_asyncio(call)


def test_an_awaited_begin_names_the_call() -> None:
    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            with pytest.raises(TypeError, match=r"async with db\.begin\(\) as tx"):
                await db.begin()  # type: ignore[misc]

    asyncio.run(main())


def test_a_task_that_awaits_a_plain_call_has_failed_with_the_explanation() -> None:
    with postroom.testing.Store() as store:
        q = store.db.create_queue("q", max_attempts=1)
        worker = postroom.Worker(store.db)

        @worker.task("q")
        async def awaits(message: Any, tx: Any) -> None:
            await tx.put(b"k", b"v")

        with store.db.begin() as tx:
            tx.enqueue("q", b"")
        worker.run_until_idle()
        (dead,) = q.dead_letters()
        assert "TypeError" in dead.last_error
        assert "plain calls" in dead.last_error


def test_plain_calls_say_so() -> None:
    for name in NAMES:
        method = getattr(postroom.aio.Transaction, name)
        assert not inspect.iscoroutinefunction(method)
        assert "A plain call, also with asyncio" in (method.__doc__ or ""), name
    assert "A plain call, also with asyncio" in (postroom.aio.Database.begin.__doc__ or "")
    assert "A plain call, also with asyncio" in (postroom.aio.Database.queue.__doc__ or "")
