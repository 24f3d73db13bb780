"""Workers: what becomes of messages whose functions return, raise, take long, or are stopped."""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from tests.client.worker.running import WAIT_SECONDS, pause


def test_writes_messages_and_acknowledgement_commit_together(
    store: postroom.testing.Store,
) -> None:
    db, q = store.db, store.db.create_queue("q")
    worker = postroom.Worker(db)

    @worker.task("q", "welcome")
    def welcome(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        tx.put(b"welcomed/" + message.key, message.payload)
        thank.enqueue(tx, b"thanks", key=message.key)
        tx.enqueue_message(b"log", message.payload)

    @worker.task("q", "thank")
    async def thank(message: postroom.aio.QueueMessage, tx: postroom.aio.Transaction) -> None:
        await tx.increment(b"thanked/" + message.key)

    with db.begin() as tx:
        handle = welcome.enqueue(tx, b"hello", key=b"7")
    assert handle.kind == "welcome"
    assert worker.run_until_idle() == 2
    assert db.get(b"welcomed/7") == b"hello"
    assert postroom.integer(db.get(b"thanked/7")) == 1
    assert [each.value for each in db.peek(b"log")] == [b"hello"]
    assert q.stats().acknowledged == 2
    assert worker.run_until_idle() == 0


def test_the_asyncio_form_runs_both_kinds_of_functions() -> None:
    async def main() -> None:
        clock = postroom.testing.Clock()
        async with await postroom.testing.open_async(clock=clock) as db:
            await db.create_queue("q")
            worker = postroom.aio.Worker(db)

            @worker.task("q", "coroutine")
            async def coroutine(message: Any, tx: postroom.aio.Transaction) -> None:
                await tx.increment(b"coroutines")

            @worker.task("q", "function")
            def function(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
                assert threading.current_thread() is not threading.main_thread()
                message.extend(30)
                tx.increment(b"functions")

            async with db.begin() as tx:
                for _ in range(5):
                    coroutine.enqueue(tx, b"")
                    function.enqueue(tx, b"")
            assert await worker.run_until_idle() == 10
            assert await db.get(b"coroutines") == await db.get(b"functions") == bytes(7) + b"\x05"

    asyncio.run(main())


def test_a_clock_that_is_moved_under_an_event_loop() -> None:
    async def main() -> None:
        clock = postroom.testing.Clock()
        async with await postroom.testing.open_async(clock=clock) as db:
            q = await db.create_queue("q")
            for _ in range(2):
                async with db.begin() as tx:
                    tx.enqueue("q", b"", deliver_at=3600)
                    tx.enqueue_message(b"inbox", b"", deliver_at=3600)
                waiting = asyncio.ensure_future(q.claim(1, wait=WAIT_SECONDS))
                await asyncio.sleep(0.01)
                clock.advance(3600)
                await db.drain()
                assert len(await waiting) == 1
            assert len(await db.peek(b"inbox")) == 2
            async with db.begin() as tx:  # timers go by the clock that was moved
                tx.enqueue("q", b"", deliver_at=0.05)
            assert len(await q.claim(1, wait=WAIT_SECONDS / 3)) == 1

    asyncio.run(main())


def test_a_clock_goes_forward_only() -> None:
    clock = postroom.testing.Clock()
    before = clock.now
    clock.advance(datetime.timedelta(hours=1))
    assert datetime.timedelta(hours=1) <= clock.now - before < datetime.timedelta(hours=2)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)
    with pytest.raises(TypeError, match="aware"):
        postroom.testing.Clock(datetime.datetime(2030, 1, 1))  # noqa: DTZ001


def test_an_exception_rejects_with_the_back_off_and_is_told(store: postroom.testing.Store) -> None:
    q = store.db.create_queue("q", min_backoff=100)
    worker = postroom.Worker(store.db)
    seen: list[int] = []

    @worker.task("q", max_attempts=3)
    def fails(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        seen.append(message.epoch)
        tx.put(b"k", b"v")
        raise ValueError("no such user")

    with store.db.begin() as tx:
        fails.enqueue(tx, b"", id="i")
    for _ in range(5):
        worker.run_until_idle()
    assert seen == [0]
    (message,) = q.messages()
    assert message.last_error == "ValueError: no such user"
    for _ in range(5):
        store.advance(600)
        worker.run_until_idle()
    assert seen == [0, 1, 2]
    assert [(each.id, each.last_error) for each in q.dead_letters()] == [
        ("i", "ValueError: no such user")
    ]
    assert store.db.get(b"k") is None


def test_reject_and_discard(store: postroom.testing.Store) -> None:
    q = store.db.create_queue("q")
    worker = postroom.Worker(store.db)

    @worker.task("q", "later")
    def later(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        tx.put(b"k", b"v")
        if message.epoch == 0:
            raise postroom.Reject("not now", delay=60)

    @worker.task("q", "never")
    async def never(message: Any, tx: Any) -> None:
        raise postroom.Discard("not for us")

    with store.db.begin() as tx:
        later.enqueue(tx, b"")
        never.enqueue(tx, b"", id="n")
    worker.run_until_idle()
    assert store.db.get(b"k") is None
    assert [each.last_error for each in q.dead_letters()] == ["not for us"]
    store.advance(30)  # the clock goes on by itself, too
    assert worker.run_until_idle() == 0
    store.advance(30)
    assert worker.run_until_idle() == 1
    assert store.db.get(b"k") == b"v"


def test_scheduled_work_and_a_clock_that_is_moved(store: postroom.testing.Store) -> None:
    store.db.create_queue("q")
    worker = postroom.Worker(store.db)
    done = []

    @worker.task("q")
    def remind(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        done.append(message.payload)

    with store.db.begin() as tx:
        remind.enqueue(tx, b"call back", deliver_at=3600)
    assert worker.run_until_idle() == 0
    store.advance(3000)  # the clock goes on by itself, too
    assert worker.run_until_idle() == 0
    store.advance(600)
    assert worker.run_until_idle() == 1
    assert done == [b"call back"]


def test_a_lost_lease_changes_nothing(store: postroom.testing.Store) -> None:
    q = store.db.create_queue("q", ack_wait=30)
    worker = postroom.Worker(store.db)

    @worker.task("q")
    def slow(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        tx.increment(b"n")
        if message.epoch == 0:
            q.reject(message.id, 0)  # an operator took it away

    with store.db.begin() as tx:
        slow.enqueue(tx, b"")
    assert worker.run_until_idle() == 2
    assert postroom.integer(store.db.get(b"n")) == 1


def test_long_work_extends_its_lease(tmp_path: Any) -> None:
    with postroom.open(":memory:") as db:
        q = db.create_queue("q", ack_wait=6.0)
        worker, seen = postroom.Worker(db), []

        @worker.task("q")
        def long(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
            seen.append(message.epoch)
            pause(6.5)  # the node may be kept waiting for half of that
            tx.put(b"k", b"v")

        with db.begin() as tx:
            long.enqueue(tx, b"")
        assert worker.run_until_idle() == 1
        assert seen == [0]
        assert db.get(b"k") == b"v"
        assert q.stats().expired == 0


def alone(message: postroom.QueueMessage) -> None:
    del message


def test_tasks_are_checked(store: postroom.testing.Store) -> None:
    worker = postroom.Worker(store.db)

    @worker.task("missing", "k")
    def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        """Do nothing: it is never called."""

    with pytest.raises(ValueError, match="already"):
        worker.task("missing", "k")
    with pytest.raises(ValueError, match="concurrency"):
        worker.task("q", concurrency=0)
    with pytest.raises(ValueError, match="max_attempts"):
        worker.task("q", max_attempts=0)
    with pytest.raises(TypeError, match=r"alone\(message\) cannot be called as f\(message, tx\)"):
        worker.task("q")(alone)
    with pytest.raises(TypeError, match=r"alone\(message\) cannot be called as f\(message, tx\)"):
        worker.inbox(b"q")(alone)
    with pytest.raises(TypeError, match=r"a task is a function f\(message, tx\), not str"):
        worker.task("q")("alone")  # type: ignore[arg-type]
    with pytest.raises(postroom.Invalid, match="'missing'"):
        worker.run_until_idle()
    begun: list[str] = []
    with pytest.raises(postroom.Invalid, match="'missing'"):
        worker.run(ready=lambda: begun.append("now"))
    assert not begun
    with pytest.raises(postroom.Invalid, match="'other'"):
        worker.run(queues=["other"])
    with pytest.raises(postroom.Invalid, match="has no database"):
        postroom.Worker().run()
    assert task.message(b"x", id="i") == postroom.Enqueue("missing", b"x", kind="k", id="i")
