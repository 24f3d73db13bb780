"""The function of a task ends neither its message nor its transaction by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from tests.client.worker.running import WAIT_SECONDS


class Application:
    """One message, given to a task of a form on a store of a form."""

    def __init__(self, *, is_async: bool, store_is_async: bool) -> None:
        self.is_async = is_async
        self.store_is_async = store_is_async
        self.refusals: list[str] = []
        self.calls = 0

    def task(self, end: Callable[[Any, Any, Any], Any]) -> Any:
        def function(message: Any, tx: Any) -> None:
            self.calls += 1
            tx.put(b"k", b"%d" % self.calls)
            try:
                end(self.db, message, tx)
            except postroom.Invalid as error:
                self.refusals.append(str(error))

        async def coroutine(message: Any, tx: Any) -> None:
            self.calls += 1
            tx.put(b"k", b"%d" % self.calls)
            try:
                ended = end(self.db, message, tx)
                if ended is not None:
                    await ended
            except postroom.Invalid as error:
                self.refusals.append(str(error))

        return coroutine if self.is_async else function

    def run(self, end: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any]:
        """Return what the store and the queue say at last."""
        if not self.store_is_async:
            with postroom.testing.Store() as store:
                self.db = store.db
                q = store.db.create_queue("q")
                worker = postroom.Worker(store.db)
                worker.task("q")(self.task(end))
                with store.db.begin() as tx:
                    tx.enqueue("q", b"", id="i")
                assert worker.run_until_idle() == 1
                return store.db.get(b"k"), q.stats()
        return asyncio.run(self._run_async(end))

    async def _run_async(self, end: Callable[[Any, Any, Any], Any]) -> tuple[Any, Any]:
        async with await postroom.testing.open_async() as db:
            self.db = db
            q = await db.create_queue("q")
            worker = postroom.aio.Worker(db)
            worker.task("q")(self.task(end))
            async with db.begin() as tx:
                tx.enqueue("q", b"", id="i")
            async with asyncio.timeout(WAIT_SECONDS):
                assert await worker.run_until_idle() == 1
            return await db.get(b"k"), await q.stats()


@pytest.fixture(params=[False, True], ids=["function", "coroutine"])
def application(request: pytest.FixtureRequest, store_is_async: bool) -> Application:
    return Application(is_async=request.param, store_is_async=store_is_async)


@pytest.fixture(params=[False, True], ids=["store", "store_of_asyncio"])
def store_is_async(request: pytest.FixtureRequest) -> bool:
    is_async: bool = request.param
    return is_async


ALONE: list[Any] = [
    lambda db, message, tx: message.acknowledge(),
    lambda db, message, tx: message.reject(0),
    lambda db, message, tx: message.release(),
    lambda db, message, tx: message.reject(dead=True, reason="no"),
]


@pytest.mark.parametrize("end", ALONE)
def test_a_message_of_a_task_refuses_to_be_settled_alone(
    application: Application, end: Any
) -> None:
    stored, stats = application.run(end)
    (refusal,) = application.refusals
    assert "tx.acknowledge('q', message)" in refusal
    assert "nothing was changed" in refusal
    assert (stored, stats.acknowledged, stats.dead) == (b"1", 1, 0)


def test_a_message_of_a_task_refuses_to_be_settled_by_its_queue(application: Application) -> None:
    if application.is_async is not application.store_is_async:
        return  # the queue is of the form of the store
    stored, stats = application.run(lambda db, message, tx: db.queue("q").acknowledge(message))
    assert len(application.refusals) == 1
    assert (stored, stats.acknowledged) == (b"1", 1)


def test_a_message_of_a_task_refuses_to_be_settled_by_another_transaction(
    application: Application,
) -> None:
    def end(db: Any, message: Any, tx: Any) -> None:
        other = db.begin()
        other.acknowledge("q", message)

    stored, stats = application.run(end)
    assert len(application.refusals) == 1
    assert (stored, stats.acknowledged) == (b"1", 1)


def test_a_message_of_a_task_may_be_extended(application: Application) -> None:
    stored, stats = application.run(lambda db, message, tx: message.extend(60))
    assert application.refusals == []
    assert (stored, stats.acknowledged) == (b"1", 1)


ENDS: list[Any] = [
    lambda db, message, tx: tx.commit(),
    lambda db, message, tx: tx.rollback(),
    lambda db, message, tx: tx.__enter__() if hasattr(tx, "__enter__") else tx.__aenter__(),
]


@pytest.mark.parametrize("end", ENDS)
def test_the_transaction_of_a_task_refuses_to_be_ended_by_its_function(
    application: Application, end: Any
) -> None:
    stored, stats = application.run(end)
    (refusal,) = application.refusals
    assert "postroom.Reject(reason, delay=...)" in refusal
    assert application.calls == 1
    assert (stored, stats.acknowledged, stats.fired) == (b"1", 1, 1)


@pytest.mark.parametrize("end", ENDS[:2])
def test_the_transaction_of_an_inbox_refuses_to_be_ended_by_its_function(end: Any) -> None:
    refusals: list[str] = []
    with postroom.testing.Store() as store:
        worker = postroom.Worker(store.db)

        @worker.inbox(b"k")
        def function(message: Any, tx: Any) -> None:
            tx.increment(b"n")
            try:
                end(store.db, message, tx)
            except postroom.Invalid as error:
                refusals.append(str(error))

        with store.db.begin() as tx:
            tx.enqueue_message(b"k", b"")
        assert worker.run_until_idle() == 1
        assert len(refusals) == 1
        assert postroom.integer(store.db.get(b"n")) == 1


def test_a_transaction_refuses_to_settle_a_message_twice() -> None:
    with postroom.testing.Store() as store:
        q = store.db.create_queue("q")
        with store.db.begin() as tx:
            tx.enqueue("q", b"", id="i")
        (message,) = q.claim(1)
        with store.db.begin() as tx:
            tx.acknowledge("q", message)
            for again in (tx.acknowledge, tx.reject, tx.cancel):
                with pytest.raises(postroom.Invalid, match="already"):
                    again("q", message)
        assert q.stats().acknowledged == 1
        with pytest.raises(postroom.Invalid, match="already"), store.db.begin() as tx:
            tx.acknowledge("q", [message, message])
