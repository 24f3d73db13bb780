"""A worker ends when it cannot go on, and goes on behind whatever fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.client.worker import inboxes
from tests.remote.servers import Server

WAIT_SECONDS = 30.0


def tasks(worker: Any) -> None:
    @worker.task("q")
    async def of_queue(message: Any, tx: Any) -> None:
        """Do nothing with a message of a queue."""

    @worker.inbox(b"k")
    async def of_inbox(message: Any, tx: Any) -> None:
        """Do nothing with a message of an inbox."""


def ended(worker: postroom.Worker, close: Any) -> BaseException | None:
    """Return how a run of it ends after ``close``."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    threading.Event().wait(0.3)
    assert thread.is_alive()
    close()
    thread.join(WAIT_SECONDS)
    if thread.is_alive():
        worker.stop()
        thread.join(WAIT_SECONDS)
        return None
    return errors[0]


def test_on_a_database_that_is_closed() -> None:
    db = postroom.open(":memory:")
    db.create_queue("q")
    worker = postroom.Worker(db)
    tasks(worker)
    error = ended(worker, db.close)
    assert isinstance(error, postroom.DatabaseClosed)
    assert "closed" in str(error)


def test_on_a_connection_that_is_closed() -> None:
    with Server() as server:
        db = postroom.connect(server.address, insecure=True)
        db.create_queue("q")
        worker = postroom.Worker(db)
        tasks(worker)
        assert isinstance(ended(worker, db.close), postroom.DatabaseClosed)


def test_on_a_database_of_asyncio_that_is_closed() -> None:
    async def main() -> None:
        db = await postroom.aio.open(":memory:")
        await db.create_queue("q")
        worker = postroom.aio.Worker(db)
        tasks(worker)
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0.2)
        await db.close()
        with pytest.raises(postroom.DatabaseClosed):
            await asyncio.wait_for(running, WAIT_SECONDS)

    asyncio.run(main())


def test_run_until_idle_reaches_mail_behind_many_failing_inboxes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inboxes, "LOOKED_AT_ONCE", 10)
    with postroom.testing.Store() as store:
        worker = postroom.Worker(store.db)
        tried: list[bytes] = []

        @worker.inbox(b"k")
        async def work(message: Any, tx: Any) -> None:
            tried.append(message.value)
            if message.value != b"sound":
                raise postroom.Reject("not now", delay=0)

        for number in range(35):
            with store.db.begin() as tx:
                tx.enqueue_message(b"k%d" % number, b"fails")
        with store.db.begin() as tx:
            tx.enqueue_message(b"k sound", b"sound")
        assert worker.run_until_idle() == 1
        assert tried.count(b"sound") == 1
        assert len(tried) <= 2 * 36


def test_moving_the_clock_does_what_is_due_in_queues() -> None:
    with postroom.testing.Store() as store:
        q = store.db.create_queue("q", ack_wait=10, max_attempts=1)
        with store.db.begin() as tx:
            tx.enqueue("q", b"", id="held")
            tx.enqueue("q", b"", id="later", deliver_at=100)
        (held,) = q.claim(1)
        store.advance(11)
        assert [each.id for each in q.dead_letters()] == [held.id]
        store.advance(90)
        assert (q.stats().ready, q.stats().scheduled) == (1, 0)
        q.schedule("tick", cron="*/5 * * * *", payload=b"")
        for _ in range(60):
            store.advance(60)
        assert q.stats().enqueued == 2 + 12


def test_a_claim_after_the_clock_was_moved_does_not_wait() -> None:
    """The thread that does upkeep sleeps by the clock of before."""
    with postroom.testing.Store() as store:
        q = store.db.create_queue("q", ack_wait=1000)
        with store.db.begin() as tx:
            tx.enqueue("q", b"")
        assert len(q.claim(1)) == 1
        took = []
        for _ in range(3):
            before = store.clock.monotonic()
            store.advance(50)
            assert q.claim(1) == []
            took.append(store.clock.monotonic() - before - 50)
        assert sorted(took)[1] < 3, "one may be late"
