"""Workers of inboxes: what becomes of mail whose functions return, raise, or are too slow."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.client.queues.consuming import Consumer
from tests.client.worker.running import WAIT_SECONDS, Running, eventually, pause


class Choosy:
    """A codec that cannot unpack everything that it packs."""

    def encode(self, value: Any) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> Any:
        if data == b"bad":
            raise ValueError("no")
        return data.decode()


def test_mail_is_worked_off_in_order(store: postroom.testing.Store) -> None:
    worker = postroom.Worker(store.db)
    seen: list[Any] = []

    @worker.inbox(b"airport/")
    def one(message: postroom.Message, tx: postroom.Transaction) -> None:
        seen.append((message.key, message.value))
        tx.increment(b"one")

    @worker.inbox(b"batch/", batch=3)
    async def several(messages: list[postroom.Message], tx: postroom.aio.Transaction) -> None:
        seen.append([each.value for each in messages])

    with store.db.begin() as tx:
        for number in range(4):
            tx.enqueue_message(b"airport/JFK", b"%d" % number)
            tx.enqueue_message(b"batch/x", b"%d" % number)
        tx.enqueue_message(b"elsewhere", b"")
    assert worker.run_until_idle() == 6
    assert [each for each in seen if isinstance(each, tuple)] == [
        (b"airport/JFK", b"%d" % number) for number in range(4)
    ]
    assert [each for each in seen if isinstance(each, list)] == [[b"0", b"1", b"2"], [b"3"]]
    assert [info.key for info in store.db.inboxes()] == [b"elsewhere"]


def test_a_failing_message_is_passed_backs_off_and_dies(store: postroom.testing.Store) -> None:
    db, worker, tried = store.db, postroom.Worker(store.db), []

    @worker.inbox(b"a", max_attempts=3)
    def fails(message: postroom.Message, tx: postroom.Transaction) -> None:
        tried.append((message.value, message.attempts))
        tx.put(b"k", b"v")
        if message.value == b"poison":
            raise ValueError("no")

    with db.begin() as tx:
        for value in (b"poison", b"behind it"):
            tx.enqueue_message(b"a", value)
    assert worker.run_until_idle() == 2
    assert tried == [(b"poison", 0), (b"behind it", 0)]
    assert [(each.message, each.last_error) for each in db.scheduled()] == [
        (b"poison", "ValueError: no")
    ]
    assert worker.run_until_idle() == 0
    for _ in range(4):
        store.advance(100)
        worker.run_until_idle()
    assert tried[2:] == [(b"poison", 1), (b"poison", 2)]
    (letter,) = db.dead_letters()
    assert (letter.key, letter.attempts, letter.reason) == (b"a", 3, "ValueError: no")
    assert db.inboxes() == []


def test_mail_is_dead_after_sixteen_failures_if_its_function_does_not_say_otherwise(
    store: postroom.testing.Store,
) -> None:
    worker, tried = postroom.Worker(store.db), []

    @worker.inbox(b"a")
    def fails(message: postroom.Message, tx: postroom.Transaction) -> None:
        tried.append(message.attempts)
        raise ValueError("no")

    with store.db.begin() as tx:
        tx.enqueue_message(b"a", b"poison")
    for _ in range(20):
        worker.run_until_idle()
        store.advance(1000)
    assert tried == list(range(16))
    (letter,) = store.db.dead_letters()
    assert (letter.key, letter.attempts) == (b"a", 16)


def test_a_failing_message_holds_up_its_inbox_if_that_is_wanted(
    store: postroom.testing.Store,
) -> None:
    worker, done = postroom.Worker(store.db), []

    @worker.inbox(b"a", hold=True)
    def fails(message: postroom.Message, tx: postroom.Transaction) -> None:
        if message.value == b"1" and message.attempts < 2:
            raise ValueError("no")
        done.append((message.key, message.value))

    with store.db.begin() as tx:
        for key, value in ((b"a/x", b"1"), (b"a/x", b"2"), (b"a/y", b"3")):
            tx.enqueue_message(key, value)
    worker.run_until_idle()
    assert done == [(b"a/y", b"3")]
    for _ in range(2):
        store.advance(100)
        worker.run_until_idle()
    assert done[1:] == [(b"a/x", b"1"), (b"a/x", b"2")]


def test_a_function_says_what_becomes_of_its_mail(store: postroom.testing.Store) -> None:
    db, worker = store.db, postroom.Worker(store.db)

    @worker.inbox(b"a")
    async def decides(message: postroom.Message, tx: postroom.aio.Transaction) -> None:
        await tx.get(b"k")
        if message.value == b"later":
            raise postroom.Reject("busy", delay=1000)
        raise postroom.Discard("of no use")

    with db.begin() as tx:
        tx.enqueue_message(b"a", b"later")
        tx.enqueue_message(b"a", b"never")
    assert worker.run_until_idle() == 2
    (waiting,) = db.scheduled()
    assert (waiting.message, waiting.attempts, waiting.last_error) == (b"later", 1, "busy")
    assert (waiting.due.datetime - db.now().datetime).total_seconds() > 900
    assert [(each.message, each.reason) for each in db.dead_letters()] == [(b"never", "of no use")]


def test_a_batch_that_fails_comes_again_one_by_one(store: postroom.testing.Store) -> None:
    worker, seen = postroom.Worker(store.db), []

    @worker.inbox(b"a", batch=10, max_attempts=2)
    def several(messages: list[postroom.Message], tx: postroom.Transaction) -> None:
        seen.append([each.value for each in messages])
        if b"poison" in seen[-1]:
            raise ValueError("no")

    with store.db.begin() as tx:
        for value in (b"1", b"poison", b"3"):
            tx.enqueue_message(b"a", value)
    worker.run_until_idle()
    store.advance(100)
    worker.run_until_idle()
    assert seen == [[b"1", b"poison", b"3"], [b"1"], [b"poison"], [b"3"]]
    assert [each.message for each in store.db.dead_letters()] == [b"poison"]


def test_a_batch_that_is_too_large_to_be_postponed_at_once(store: postroom.testing.Store) -> None:
    worker, key = postroom.Worker(store.db), b"a" * 4000

    @worker.inbox(b"a", batch=2000)
    def several(messages: list[postroom.Message], tx: postroom.Transaction) -> None:
        raise postroom.Reject(delay=3600)  # on a busy machine all this takes more than a second

    for _ in range(2):
        with store.db.begin() as tx:
            for _ in range(1000):
                tx.enqueue_message(key, bytes(3000))
    worker.run_until_idle()
    assert [each.attempts for each in store.db.scheduled(limit=5000)] == [1] * 2000


def test_a_retryable_error_is_not_counted_as_an_attempt(
    store: postroom.testing.Store,
) -> None:
    db, worker, tries = store.db, postroom.Worker(store.db), []

    @worker.inbox(b"a", max_attempts=1)
    async def refused(message: postroom.Message, tx: postroom.aio.Transaction) -> None:
        tries.append(message.attempts)
        if len(tries) < 3:
            raise postroom.Unavailable("no leader", retry_after=0.01)
        tx.put(b"done", b"")

    with db.begin() as tx:
        tx.enqueue_message(b"a", b"")
    assert worker.run_until_idle() == 1
    assert tries == [0, 0, 0]
    assert db.dead_letters() == []


def test_a_message_that_the_codec_cannot_unpack_becomes_a_dead_letter() -> None:
    with postroom.testing.Store(codec=Choosy()) as store:
        db, worker, seen = store.db, postroom.Worker(store.db), []

        @worker.inbox(b"a", max_attempts=2, batch=2)
        def several(messages: list[postroom.Message], tx: postroom.Transaction) -> None:
            seen.append([each.value for each in messages])

        with db.begin() as tx:
            for value in ("bad", "good", "other"):
                tx.enqueue_message(b"a", value)
        worker.run_until_idle()
        assert {each.message for each in db.scheduled()} == {b"bad", "good"}
        store.advance(100)
        worker.run_until_idle()
        assert seen == [["other"], ["good"]]
        (letter,) = db.dead_letters()
        assert (letter.message, letter.attempts) == (b"bad", 2)
        assert letter.reason.startswith("WrongType: ")


def test_a_function_whose_transactions_conflict_is_not_counted(
    store: postroom.testing.Store,
) -> None:
    """Each try loses on another key: it has locked those on which the tries before it lost."""
    db, worker, tries = store.db, postroom.Worker(store.db), []

    @worker.inbox(b"a", max_attempts=1)
    def conflicts(message: postroom.Message, tx: postroom.Transaction) -> None:
        tries.append(message.attempts)
        tx.get_many([b"1", b"2", b"3"])
        if len(tries) < 4:
            db.put(b"%d" % len(tries), b"other")
        tx.put(b"k", b"done")

    with db.begin() as tx:
        tx.enqueue_message(b"a", b"")
    assert worker.run_until_idle() == 1
    assert tries == [0, 0, 0, 0]
    assert db.get(b"k") == b"done"
    assert db.dead_letters() == []


def test_keys_that_fail_are_not_in_the_way_of_those_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("postroom.client.worker.inboxes.LOOKED_AT_ONCE", 3)
    monkeypatch.setattr("postroom.client.worker.inboxes.BACKOFF_SECONDS_FIRST", 1000.0)
    with postroom.open(":memory:") as db:
        worker, seen = postroom.Worker(db), threading.Event()

        @worker.inbox(b"k")
        def work(message: postroom.Message, tx: postroom.Transaction) -> None:
            if message.key != b"k/good":
                raise ValueError("no")
            seen.set()

        for key in (b"k/1", b"k/2", b"k/3", b"k/4", b"k/good"):
            with db.begin() as tx:
                tx.enqueue_message(key, b"")
        with Running(worker):
            assert seen.wait(WAIT_SECONDS)


def test_back_offs_of_keys_grow_and_end() -> None:
    from postroom.client.worker.inboxes import Backoffs  # noqa: PLC0415 - of this test alone

    backoffs, now = Backoffs(), 0.0
    pauses = []
    for _ in range(11):
        pauses.append(backoffs.failed(b"k", now))
        assert backoffs.holds(b"k", now + pauses[-1] - 0.1)
        assert not backoffs.holds(b"k", now + pauses[-1])
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    backoffs.succeeded(b"k")
    assert backoffs.failed(b"k", now) == 1


def test_one_worker_a_key_at_a_time() -> None:
    with postroom.open(":memory:") as db:
        lock, busy, seen, together = threading.Lock(), set(), [], []

        def work(message: postroom.Message, tx: postroom.Transaction) -> None:
            with lock:
                if message.key in busy:
                    together.append(message.key)
                busy.add(message.key)
            pause(0.005)
            with lock:
                busy.discard(message.key)
                seen.append((message.key, int(message.value)))

        workers = [postroom.Worker(db) for _ in range(3)]
        for worker in workers:
            worker.inbox(b"k", concurrency=4)(work)
        with db.begin() as tx:
            for number in range(15):
                for key in (b"k1", b"k2", b"k3"):
                    tx.enqueue_message(key, b"%d" % number)
        with Running(workers[0]), Running(workers[1]), Running(workers[2]):
            eventually(lambda: not db.inboxes())
        assert together == []
        for key in (b"k1", b"k2", b"k3"):
            assert [number for of, number in seen if of == key] == list(range(15))


def test_messages_claimed_together_begin_together() -> None:
    """Otherwise each transaction has a turn of the store, and a sync, of its own."""
    together = 8

    async def main() -> int:
        async with await postroom.testing.open_async() as db:
            q = await db.create_queue("q", batch_size=together)
            worker = postroom.aio.Worker(db)
            running, most = 0, 0

            @worker.task("q", concurrency=together)
            async def work(message: Any, tx: postroom.aio.Transaction) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

            async with db.begin() as tx:
                for _ in range(8 * together):
                    work.enqueue(tx, b"")
            going = asyncio.ensure_future(worker.run())
            while (await q.stats()).acknowledged < 8 * together:
                await asyncio.sleep(0.001)
            worker.stop()
            await going
            return most

    assert asyncio.run(main()) >= together // 2, "the other half may be in hand still"


def test_a_claim_that_fails_while_its_worker_is_cancelled_is_no_stray_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> list[Any]:
        strays: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: strays.append(told))
        asked, fails = asyncio.Event(), asyncio.Event()

        async def failing(*_: Any) -> None:
            asked.set()
            await fails.wait()
            raise postroom.Unavailable("nobody leads")

        monkeypatch.setattr(Consumer, "next", failing)
        async with await postroom.testing.open_async() as db:
            await db.create_queue("q")
            worker = postroom.aio.Worker(db)
            worker.task("q")(lambda message, tx: None)
            going = asyncio.ensure_future(worker.run())
            await asked.wait()
            fails.set()
            await asyncio.sleep(0)
            going.cancel()
            await asyncio.wait({going})
        gc.collect()
        await asyncio.sleep(0)
        return strays

    assert asyncio.run(main()) == []


def test_a_message_that_comes_while_its_worker_is_cancelled_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Consumer.next

    async def main() -> Any:
        async with await postroom.testing.open_async() as db:
            q = await db.create_queue("q", ack_wait=600)
            async with db.begin() as tx:
                tx.enqueue("q", b"")
            worker = postroom.aio.Worker(db)
            worker.task("q")(lambda message, tx: None)

            async def cancelled_with_its_end(*given: Any) -> Any:
                message = await real(*given)
                going.cancel()
                return message

            monkeypatch.setattr(Consumer, "next", cancelled_with_its_end)
            going = asyncio.ensure_future(worker.run())
            await asyncio.wait({going})
            return await q.stats()

    stats = asyncio.run(main())
    assert (stats.fired, stats.ready, stats.leased, stats.expired) == (1, 1, 0, 0)
