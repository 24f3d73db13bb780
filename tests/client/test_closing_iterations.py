"""``watch`` and ``receive`` end when they are closed, from anywhere, or when nothing comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import postroom
import postroom.aio

WAIT_SECONDS = 30.0


def watch(db: Any, **options: Any) -> Any:
    return db.watch(b"k", **options)


def receive(db: Any, **options: Any) -> Any:
    return db.queue("q").receive(**options)


def give_something(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.put(b"k", b"v")
        tx.enqueue("q", b"")


makes = pytest.mark.parametrize("make", [watch, receive])


def taken(iteration: Any, items: list[Any], began: threading.Semaphore) -> threading.Thread:
    def take() -> None:
        began.release()
        for item in iteration:
            items.append(item)
            began.release()

    thread = threading.Thread(target=take)
    thread.start()
    return thread


@makes
@pytest.mark.parametrize("after", [0, 1])
def test_another_thread_ends_an_iteration_that_waits(
    db: postroom.Database, make: Any, after: int
) -> None:
    db.create_queue("q", ack_wait=600)
    items: list[Any] = []
    began = threading.Semaphore(0)
    iteration = make(db)
    thread = taken(iteration, items, began)
    assert began.acquire(timeout=WAIT_SECONDS)
    if after:
        give_something(db)
        assert began.acquire(timeout=WAIT_SECONDS)
    iteration.close()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert len(items) == after
    assert list(iteration) == []
    iteration.close()


@makes
def test_a_thread_that_waits_already_is_ended(make: Any) -> None:
    with postroom.open(":memory:") as db:
        db.create_queue("q")
        for _ in range(20):
            iteration, began = make(db), threading.Semaphore(0)
            thread = taken(iteration, [], began)
            assert began.acquire(timeout=WAIT_SECONDS)
            while not db._core._sender._waiting:  # type: ignore[attr-defined]
                threading.Event().wait(0.001)
            iteration.close()
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


@makes
def test_an_iteration_ends_when_nothing_comes(db: postroom.Database, make: Any) -> None:
    db.create_queue("q")
    iteration = make(db, timeout=0.2)
    give_something(db)
    assert len(list(iteration)) == 1
    with pytest.raises(StopIteration):
        next(iteration)


@makes
@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_timeout_is_a_number_of_seconds(make: Any, timeout: Any) -> None:
    with postroom.open(":memory:") as db:
        db.create_queue("q")
        with pytest.raises((TypeError, ValueError), match="timeout"):
            make(db, timeout=timeout)


def test_the_messages_of_a_closed_iteration_go_back(db: postroom.Database) -> None:
    q = db.create_queue("q", ack_wait=600, batch_size=10)
    with db.begin() as tx:
        for _ in range(10):
            tx.enqueue("q", b"")
    with q.receive(credit=10) as iteration:
        for message in iteration:
            message.acknowledge()
            if q.stats().leased > 1:
                break  # an iteration may wait here
            if q.stats().acknowledged == 9:
                break
    assert q.stats().leased <= 1


@makes
def test_another_task_ends_an_iteration_that_waits(make: Any) -> None:
    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.create_queue("q")
            iteration = make(db)
            items: list[Any] = []

            async def take() -> str:
                async for item in iteration:
                    items.append(item)  # noqa: PERF401 - they are looked at one by one
                return "ended"

            taking = asyncio.ensure_future(take())
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.sleep(0.01)
                async with db.begin() as tx:
                    tx.put(b"k", b"v")
                    tx.enqueue("q", b"")
                while not items:
                    await asyncio.sleep(0.001)
                await iteration.close()
                assert await taking == "ended"
                assert [item async for item in iteration] == []
                await iteration.close()

    asyncio.run(main())


@makes
def test_an_iteration_of_asyncio_ends_when_nothing_comes_or_its_task_is_cancelled(
    make: Any,
) -> None:
    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            await db.create_queue("q")
            async with asyncio.timeout(WAIT_SECONDS):
                assert [item async for item in make(db, timeout=0.05)] == []
            iteration = make(db)
            taking = asyncio.ensure_future(anext(iteration))
            await asyncio.sleep(0.01)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking

    asyncio.run(main())


CALLS: list[Callable[[postroom.Database], Any]] = [
    lambda db: db.queue("q").claim(1, wait=1000),
    lambda db: next(db.watch(b"k")),
    lambda db: next(db.queue("q").receive()),
    lambda db: db.run(lambda tx: tx.reap_queue(b"k", wait=1000)),
]


@pytest.mark.parametrize("call", CALLS)
def test_closing_the_database_ends_what_waits_with_that(
    db: postroom.Database, call: Callable[[postroom.Database], Any]
) -> None:
    db.create_queue("q")
    errors: list[BaseException] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            call(db)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(WAIT_SECONDS)
    threading.Event().wait(0.1)
    db.close()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [postroom.DatabaseClosed]


def test_closing_a_database_of_asyncio_ends_what_waits_with_that() -> None:
    async def main() -> None:
        db = await postroom.aio.open(":memory:")
        q = await db.create_queue("q")
        calls = [q.claim(1, wait=1000), anext(db.watch(b"k")), anext(q.receive())]
        waiting = [asyncio.ensure_future(each) for each in calls]
        await asyncio.sleep(0.01)
        await db.close()
        async with asyncio.timeout(WAIT_SECONDS):
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in ended] == [postroom.DatabaseClosed] * 3

    asyncio.run(main())
