"""Workers that run for long: stopping, concurrency, a store that is away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from tests.client.worker.running import WAIT_SECONDS, Running, eventually, pause
from tests.remote.servers import Server


def test_stopping_finishes_what_runs_and_gives_back_the_rest() -> None:
    with postroom.open(":memory:") as db:
        q = db.create_queue("q", ack_wait=600)
        worker, begun, may_end = postroom.Worker(db), threading.Event(), threading.Event()

        @worker.task("q", concurrency=1)
        def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
            begun.set()
            assert may_end.wait(WAIT_SECONDS)
            tx.increment(b"n")

        with Running(worker) as running:
            with db.begin() as tx:
                for _ in range(10):
                    task.enqueue(tx, b"")
            assert begun.wait(WAIT_SECONDS)
            running.tell()
            may_end.set()
            running.stop()
        assert postroom.integer(db.get(b"n")) == 1
        left = q.claim(10)
        assert len(left) == 9
        assert {each.epoch for each in left} == {0}


@pytest.mark.parametrize("store_is_async", [False, True])
def test_a_coroutine_function_is_told_that_the_worker_is_ready(store_is_async: bool) -> None:
    told: list[bool] = []
    worker: Any = (postroom.aio if store_is_async else postroom).Worker()
    worker.inbox(b"k")(lambda message, tx: None)

    async def ready() -> None:
        await asyncio.sleep(0)
        told.append(True)
        worker.stop()

    async def main() -> None:
        async with await postroom.testing.open_async() as db:
            worker.bind(db)
            await worker.run(ready=ready)

    if store_is_async:
        asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))
    else:
        with postroom.testing.Store() as store:
            worker.bind(store.db)
            worker.run(ready=ready)
    assert told == [True]


def test_a_generator_function_is_not_told_that_the_worker_is_ready() -> None:
    def ready() -> Iterator[None]:
        yield

    with postroom.testing.Store() as store, pytest.raises(TypeError, match="generator function"):
        postroom.Worker(store.db).run(ready=ready)


def test_concurrency_of_a_task_and_of_a_worker() -> None:
    with postroom.open(":memory:") as db:
        db.create_queue("q")
        now = most = expected = 0

        async def busy(message: postroom.aio.QueueMessage, tx: postroom.aio.Transaction) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            give_up = time.monotonic() + WAIT_SECONDS
            while most < expected and time.monotonic() < give_up:
                await asyncio.sleep(0.01)  # the others may have yet to be claimed
            await asyncio.sleep(0.02)
            now -= 1
            tx.put(message.key, b"done")

        for bound, expected in ((None, 8), (3, 3)):
            worker, most = postroom.Worker(db), 0
            tasks = [worker.task("q", kind, concurrency=4)(busy) for kind in "ab"]
            before = db.queue("q").stats().acknowledged
            with db.begin() as tx:
                for _ in range(20):
                    for task in tasks:
                        task.enqueue(tx, b"")
            with Running(worker, concurrency=bound):
                eventually(lambda done=before + 40: db.queue("q").stats().acknowledged == done)
            assert most == expected


def test_a_worker_goes_on_when_the_store_comes_back() -> None:
    with (
        Server() as server,
        postroom.connect(server.address, insecure=True, timeout=3.0) as db,
    ):
        db.create_queue("q")
        worker = postroom.Worker(db)

        @worker.task("q")
        def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
            tx.put(message.payload, b"done")

        def send(name: bytes) -> None:
            db.run(lambda tx: task.enqueue(tx, name))

        with Running(worker):
            send(b"first")
            eventually(lambda: db.get(b"first"))
            server.stop()
            pause(3.5)  # longer than a claim waits, and than the client is patient
            server.start()
            send(b"second")
            eventually(lambda: db.get(b"second"))
