"""A function that hangs is given up: its attempt has failed, and its worker goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.client.worker import calls
from postroom.client.worker.calls import Threads
from tests.client.worker.running import WAIT_SECONDS, Running, eventually


class Hanging:
    """Functions that hang until the test ends."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)

    def function(self, message: Any, tx: Any) -> None:
        tx.put(b"k", b"before")
        self.begun.release()
        assert self.over.wait(2 * WAIT_SECONDS)
        try:
            tx.put(b"k", b"after")
        finally:
            self.ended.release()

    async def coroutine(self, message: Any, tx: Any) -> None:
        tx.put(b"k", b"before")
        self.begun.release()
        try:
            await asyncio.sleep(2 * WAIT_SECONDS)
        finally:
            self.ended.release()

    async def disobedient(self, message: Any, tx: Any) -> None:
        tx.put(b"k", b"before")
        self.begun.release()
        while not self.over.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        self.ended.release()

    async def failing(self, message: Any, tx: Any) -> None:
        self.begun.release()
        try:
            await asyncio.sleep(2 * WAIT_SECONDS)
        except asyncio.CancelledError:
            raise ValueError("it makes another error of its cancellation") from None


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.over.set()


kinds = pytest.mark.parametrize("kind", ["function", "coroutine", "disobedient"])


@kinds
@pytest.mark.parametrize("store_is_async", [False, True])
def test_a_task_that_hangs_has_failed_when_its_time_is_over(
    hanging: Hanging, kind: str, store_is_async: bool
) -> None:
    function = getattr(hanging, kind)

    async def main() -> tuple[Any, Any, int]:
        async with await postroom.testing.open_async() as db:
            q = await db.create_queue("q", max_attempts=1, max_concurrency=1)
            worker = postroom.aio.Worker(db)
            worker.task("q", timeout=0.1, concurrency=1)(function)
            worker.task("q", "quick")(quick)
            async with db.begin() as tx:
                tx.enqueue("q", b"")
                tx.enqueue("q", b"", kind="quick")
            async with asyncio.timeout(WAIT_SECONDS):
                assert await worker.run_until_idle() == 2
            lost = worker.lost_calls
            hanging.over.set()
            return await q.dead_letters(), await db.get(b"k"), lost

    if store_is_async:
        (dead,), stored, lost = asyncio.run(main())
    else:
        with postroom.testing.Store() as store:
            q = store.db.create_queue("q", max_attempts=1, max_concurrency=1)
            worker = postroom.Worker(store.db)
            worker.task("q", timeout=0.1, concurrency=1)(function)
            worker.task("q", "quick")(quick)
            with store.db.begin() as tx:
                tx.enqueue("q", b"")
                tx.enqueue("q", b"", kind="quick")
            assert worker.run_until_idle() == 2
            lost = worker.lost_calls
            (dead,), stored = q.dead_letters(), store.db.get(b"k")
    assert dead.last_error.startswith("TimeoutError: it ran for more than 0.1 s")
    assert stored == b"quick"
    assert lost == (0 if kind == "coroutine" else 1)


def quick(message: Any, tx: Any) -> None:
    tx.put(b"k", b"quick")


@kinds
def test_mail_whose_function_hangs_is_postponed(hanging: Hanging, kind: str) -> None:
    with postroom.testing.Store() as store:
        worker = postroom.Worker(store.db)
        worker.inbox(b"k", timeout=0.1)(getattr(hanging, kind))
        with store.db.begin() as tx:
            tx.enqueue_message(b"k", b"")
        worker.run_until_idle()
        (waiting,) = store.db.scheduled()
        assert waiting.attempts == 1
        assert waiting.last_error.startswith("TimeoutError: it ran for more than 0.1 s")
        hanging.over.set()
        assert store.db.get(b"k") is None


def test_writes_of_a_lost_thread_do_not_count(hanging: Hanging) -> None:
    errors: list[Exception] = []

    def function(message: Any, tx: Any) -> None:
        hanging.begun.release()
        assert hanging.over.wait(2 * WAIT_SECONDS)
        for end in (lambda: tx.put(b"k", b"late"), lambda: tx.get(b"k"), message.acknowledge):
            try:
                end()
            except postroom.Error as error:
                errors.append(error)
        hanging.ended.release()

    with postroom.open(":memory:") as db:
        q = db.create_queue("q", max_attempts=1)
        worker = postroom.Worker(db)
        worker.task("q", timeout=0.1)(function)
        with Running(worker):
            with db.begin() as tx:
                tx.enqueue("q", b"")
            eventually(lambda: q.stats().dead == 1)
            assert worker.lost_calls == 1
            hanging.over.set()
            assert hanging.ended.acquire(timeout=WAIT_SECONDS)
            eventually(lambda: worker.lost_calls == 0)
        assert [type(error) for error in errors[:2]] == [postroom.TransactionClosed] * 2
        assert "given up by its worker" in str(errors[0])
        assert isinstance(errors[2], postroom.Invalid)
        assert db.get(b"k") is None


def test_a_worker_whose_calls_are_all_lost_takes_nothing_more_until_one_returns(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    with postroom.open(":memory:") as db:
        q = db.create_queue("q", max_attempts=1)
        worker = postroom.Worker(db)
        worker.task("q", "hangs", timeout=0.05, concurrency=1)(hanging.function)
        worker.task("q", "quick", concurrency=1)(quick)
        with Running(worker):
            with db.begin() as tx:
                for _ in range(6):
                    tx.enqueue("q", b"", kind="hangs")
            eventually(lambda: worker.lost_calls >= 2)
            eventually(lambda: "takes nothing more" in caplog.text)
            lost = worker.lost_calls
            assert lost <= 4
            with db.begin() as tx:
                tx.enqueue("q", b"", kind="quick")
            hanging.over.set()
            eventually(lambda: q.stats().ready == 0 and q.stats().leased == 0)
        assert q.stats().acknowledged + q.stats().dead == 7


def test_the_time_of_a_call_is_an_hour_by_the_clock_of_the_store(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LONGEST_LOOK_SECONDS", 0.01)
    with postroom.testing.Store() as store:
        q = store.db.create_queue("q", max_attempts=1, ack_wait=10_000_000)
        worker = postroom.Worker(store.db)
        worker.task("q")(hanging.function)
        with Running(worker):
            with store.db.begin() as tx:
                tx.enqueue("q", b"")
            assert hanging.begun.acquire(timeout=WAIT_SECONDS)
            store.advance(3500)
            threading.Event().wait(0.05)
            assert q.stats().leased == 1
            store.advance(101)
            eventually(lambda: q.stats().dead == 1)


def test_a_call_for_an_inbox_has_a_minute_by_default() -> None:
    task = postroom.Worker().inbox(b"k")(quick)
    assert task.options.timeout == 60


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    worker = postroom.Worker()
    for register in (worker.task, worker.inbox):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            register("q" if register == worker.task else b"q", timeout=timeout)  # type: ignore[operator]


def test_a_worker_that_is_told_twice_gives_back_what_its_functions_hold(hanging: Hanging) -> None:
    for kind in ("function", "coroutine", "failing", "disobedient"):
        with postroom.open(":memory:") as db:
            q = db.create_queue("q", ack_wait=600)
            worker = postroom.Worker(db)
            worker.task("q", concurrency=1)(getattr(hanging, kind))
            with Running(worker) as running:
                with db.begin() as tx:
                    tx.enqueue("q", b"")
                assert hanging.begun.acquire(timeout=WAIT_SECONDS)
                running.tell()
                worker.stop()
                if kind == "disobedient":
                    eventually(lambda q=q: q.stats().ready == 1)
                    hanging.over.set()
            (again,) = q.claim(1)
            assert again.epoch == 0


@pytest.mark.parametrize("kind", ["function", "coroutine", "failing", "disobedient"])
def test_a_worker_that_is_told_twice_counts_no_attempt_at_the_mail_of_its_functions(
    hanging: Hanging, kind: str
) -> None:
    with postroom.open(":memory:") as db:
        worker = postroom.Worker(db)
        worker.inbox(b"k")(getattr(hanging, kind))
        with Running(worker) as running:
            with db.begin() as tx:
                tx.enqueue_message(b"k", b"v")
            assert hanging.begun.acquire(timeout=WAIT_SECONDS)
            running.tell()
            worker.stop()
            with db.begin() as tx:
                (message,) = tx.reap_queue(b"k", wait=WAIT_SECONDS)
            hanging.over.set()
        assert (message.attempts, message.last_error) == (0, "")
        assert db.scheduled() == []


# --- the threads of functions


def test_a_call_that_waits_for_a_thread_gets_the_place_of_a_lost_one(hanging: Hanging) -> None:
    threads = Threads(1, "test")
    lost = threads.submit(hanging.over.wait, 2 * WAIT_SECONDS)
    waiting = threads.submit(lambda: "called")
    while not lost.running():
        threading.Event().wait(0.001)
    assert not waiting.running()
    assert threads.lose(lost)
    assert waiting.result(WAIT_SECONDS) == "called"
    assert threads.lost == 1
    hanging.over.set()
    eventually(lambda: threads.lost == 0)
    threads.shutdown()


def test_threads_are_at_most_twice_as_many_as_calls_at_a_time(hanging: Hanging) -> None:
    threads = Threads(1, "two at most")
    for _ in range(2):
        lost = threads.submit(hanging.over.wait, 2 * WAIT_SECONDS)
        while not lost.running():
            threading.Event().wait(0.001)
        assert threads.lose(lost)
    third = threads.submit(lambda: "called")
    assert [each.name for each in threading.enumerate()].count("two at most") == 2
    hanging.over.set()
    assert third.result(WAIT_SECONDS) == "called"
    threads.shutdown()
