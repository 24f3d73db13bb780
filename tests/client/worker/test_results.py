"""The results of tasks: returned values and exceptions come to those who wait for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.limits import RESULT_BYTES_MAX
from tests.client.worker.running import WAIT_SECONDS, Running


@pytest.fixture
def q(store: postroom.testing.Store) -> postroom.Queue:
    return store.db.create_queue("q", max_attempts=2, min_backoff=1)


def test_a_returned_value_commits_with_the_writes_of_the_task(
    store: postroom.testing.Store, q: postroom.Queue
) -> None:
    worker = postroom.Worker(store.db)

    @worker.task("q", keep_result=3600)
    def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> bytes:
        tx.put(b"work", message.payload)
        return message.payload.upper()

    @worker.task("q", "none", keep_result=3600)
    async def none(message: postroom.aio.QueueMessage, tx: postroom.aio.Transaction) -> None:
        tx.put(b"more", message.payload)

    with store.db.begin() as tx:
        handles = [task.enqueue(tx, b"a"), none.enqueue(tx, b"b")]
    assert worker.run_until_idle() == 2
    assert [each.result() for each in handles] == [b"A", None]
    assert (store.db.get(b"work"), store.db.get(b"more")) == (b"a", b"b")
    store.advance(3601)
    assert q.stats().results == 0


def test_a_waiting_thread_is_told_as_soon_as_the_task_returns(
    store: postroom.testing.Store, q: postroom.Queue
) -> None:
    worker, may_end = postroom.Worker(store.db), threading.Event()

    @worker.task("q", keep_result=60)
    def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> bytes:
        assert may_end.wait(WAIT_SECONDS)
        return b"done"

    with Running(worker):
        with store.db.begin() as tx:
            handle = task.enqueue(tx, b"")
        with pytest.raises(TimeoutError):
            handle.result(wait=0.01)
        found: list[Any] = []
        waiters = [
            threading.Thread(target=lambda: found.append(handle.result(wait=WAIT_SECONDS)))
            for _ in range(8)
        ]
        for each in waiters:
            each.start()
        may_end.set()
        for each in waiters:
            each.join(WAIT_SECONDS)
        assert found == [b"done"] * 8


def test_the_exception_of_the_last_attempt_comes_back_as_text(
    store: postroom.testing.Store, q: postroom.Queue
) -> None:
    worker = postroom.Worker(store.db)

    @worker.task("q", keep_result=3600)
    def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> None:
        tx.put(b"never", b"")
        raise KeyError("no such film", message.epoch)

    with store.db.begin() as tx:
        handle = task.enqueue(tx, b"")
    assert worker.run_until_idle() == 1
    with pytest.raises(TimeoutError):
        handle.result()
    store.advance(5)
    assert worker.run_until_idle() == 1
    with pytest.raises(postroom.TaskFailed, match=r"has failed: KeyError: .*'no such film', 1"):
        handle.result(wait=5)
    with pytest.raises(postroom.TaskFailed) as failed:
        q.result(handle.id)
    assert (failed.value.type, failed.value.reason) == ("KeyError", "('no such film', 1)")
    assert 'raise KeyError("no such film", message.epoch)' in failed.value.traceback
    assert "calling.py" not in failed.value.traceback
    assert store.db.get(b"never") is None


@pytest.mark.parametrize("returned", [bytes(RESULT_BYTES_MAX + 1), "no bytes"])
def test_a_result_that_cannot_be_kept_makes_a_dead_letter_at_once(
    store: postroom.testing.Store, q: postroom.Queue, returned: object
) -> None:
    worker = postroom.Worker(store.db)

    @worker.task("q", keep_result=3600)
    def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> object:
        tx.put(b"never", b"")
        return returned

    with store.db.begin() as tx:
        handle = task.enqueue(tx, b"")
    assert worker.run_until_idle() == 1
    with pytest.raises(postroom.TaskFailed, match=r"under a key, and return|encode them") as failed:
        handle.result()
    assert failed.value.type == "ResultRefused"
    assert store.db.get(b"never") is None
    assert [each.id for each in q.dead_letters()] == [handle.id]


def test_a_task_that_settles_its_message_itself_keeps_no_result(
    store: postroom.testing.Store, q: postroom.Queue
) -> None:
    worker = postroom.Worker(store.db)

    @worker.task("q", keep_result=3600)
    def task(message: postroom.QueueMessage, tx: postroom.Transaction) -> bytes:
        tx.acknowledge("q", message)
        return b"dropped"

    with store.db.begin() as tx:
        handle = task.enqueue(tx, b"")
    assert worker.run_until_idle() == 1
    with pytest.raises(postroom.Invalid, match="no result of it is kept"):
        handle.result()


def test_the_asyncio_form_waits_without_a_thread() -> None:
    async def main() -> None:
        async with await postroom.testing.open_async(codec="json") as db:
            await db.create_queue("q")
            worker = postroom.aio.Worker(db)

            @worker.task("q", keep_result=60)
            async def task(message: Any, tx: postroom.aio.Transaction) -> Any:
                return {"twice": message.payload * 2}

            async with db.begin() as tx:
                handles = [task.enqueue(tx, number) for number in range(100)]
            waiters = [asyncio.ensure_future(each.result(wait=WAIT_SECONDS)) for each in handles]
            running = asyncio.ensure_future(worker.run())
            assert await asyncio.gather(*waiters) == [{"twice": 2 * n} for n in range(100)]
            worker.stop()
            await running

    asyncio.run(main())


@pytest.mark.parametrize("keep", [-1, "a day", float("nan"), 400 * 86_400])
def test_a_length_of_time_that_is_none_is_refused(keep: Any) -> None:
    with pytest.raises((TypeError, ValueError, postroom.Invalid), match="keep_result"):
        postroom.Worker().task("q", keep_result=keep)
