"""A worker acknowledges no work that has not run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from tests.client.worker.running import WAIT_SECONDS


async def coroutine_function(message: Any, tx: Any) -> None:
    await tx.increment(b"done")


def function(message: Any, tx: Any) -> None:
    tx.increment(b"done")


def plainly_decorated(message: Any, tx: Any) -> Any:
    tx.put(b"decorator", b"%d" % len(tx.id))
    return coroutine_function(message, tx)


@functools.wraps(coroutine_function)
def wrapped(message: Any, tx: Any) -> Any:
    return coroutine_function(message, tx)


@functools.wraps(coroutine_function)
def wrapped_by_what_is_plain(message: Any, tx: Any) -> None:
    tx.increment(b"done")


class Asynchronous:
    async def __call__(self, message: Any, tx: Any) -> None:
        await tx.increment(b"done")

    async def method(self, message: Any, tx: Any) -> None:
        await tx.increment(b"done")


class Plain:
    def __call__(self, message: Any, tx: Any) -> None:
        tx.increment(b"done")


class Awaitable_:  # noqa: N801 - not the one of collections.abc
    def __init__(self, tx: Any) -> None:
        self.tx = tx

    def __await__(self) -> Any:
        return self.tx.increment(b"done").__await__()


async def coroutine_of_coroutine(message: Any, tx: Any) -> Any:
    return coroutine_function(message, tx)


RUNS: list[Any] = [
    coroutine_function,
    function,
    plainly_decorated,
    wrapped,
    wrapped_by_what_is_plain,
    Asynchronous(),
    Asynchronous().method,
    Plain(),
    functools.partial(coroutine_function),
    functools.partial(Asynchronous()),
    functools.partial(function),
    lambda message, tx: coroutine_function(message, tx) if tx else None,
    lambda message, tx: Awaitable_(tx),
    coroutine_of_coroutine,
]


def generator_function(message: Any, tx: Any) -> Iterator[None]:
    yield tx.increment(b"done")


async def asynchronous_generator_function(message: Any, tx: Any) -> AsyncIterator[None]:
    yield await tx.increment(b"done")


class MakesGenerators:
    def __call__(self, message: Any, tx: Any) -> Iterator[None]:
        yield


class Class:
    def __init__(self, message: Any, tx: Any) -> None:
        self.tx = tx


REFUSED: list[Any] = [
    generator_function,
    asynchronous_generator_function,
    functools.partial(generator_function),
    MakesGenerators(),
    Class,
    functools.partial(Class),
]


async def coroutine_of_generator(message: Any, tx: Any) -> Any:
    return generator_function(message, tx)


UNRUN: list[Any] = [
    lambda message, tx: generator_function(message, tx) if tx else None,
    lambda message, tx: asynchronous_generator_function(message, tx) if tx else None,
    lambda message, tx: functools.partial(function, message, tx),
    lambda message, tx: function,
    lambda message, tx: map(tx.delete, [b"k"]),
    lambda message, tx: itertools.starmap(tx.put, [(b"done", b"")]),
    lambda message, tx: zip(map(tx.delete, [b"k"]), strict=True),
    lambda message, tx: concurrent.futures.Future(),
    coroutine_of_generator,
]


def worked_off(function: Any, *, of: str, store_is_async: bool) -> tuple[Any, Any, Any]:
    """Return the function's result, the remaining work, and the end of the first attempt."""

    def register(worker: Any) -> None:
        if of == "queue":
            worker.task("q")(function)
        else:
            worker.inbox(b"k")(function)

    def send(tx: Any) -> None:
        if of == "queue":
            tx.enqueue("q", b"")
        else:
            tx.enqueue_message(b"k", b"")

    async def main() -> tuple[Any, Any, Any]:
        async with await postroom.testing.open_async() as db:
            q = await db.create_queue("q", min_backoff=60)
            worker = postroom.aio.Worker(db)
            register(worker)
            async with db.begin() as tx:
                send(tx)
            async with asyncio.timeout(WAIT_SECONDS):
                await worker.run_until_idle()
            left = [*await q.messages("scheduled"), *await db.scheduled()]
            return await db.get(b"done"), await db.get(b"decorator"), left

    if store_is_async:
        done, decorator, left = asyncio.run(main())
    else:
        with postroom.testing.Store() as store:
            q = store.db.create_queue("q", min_backoff=60)
            worker = postroom.Worker(store.db)
            register(worker)
            with store.db.begin() as tx:
                send(tx)
            worker.run_until_idle()
            left = [*q.messages("scheduled"), *store.db.scheduled()]
            done, decorator = store.db.get(b"done"), store.db.get(b"decorator")
    return done, decorator, [each.last_error for each in left]


places = pytest.mark.parametrize("of", ["queue", "inbox"])
forms = pytest.mark.parametrize("store_is_async", [False, True])


@forms
@places
@pytest.mark.parametrize("function", RUNS)
def test_a_function_of_any_kind_runs_before_its_message_is_done(
    of: str, store_is_async: bool, function: Any
) -> None:
    done, decorator, left = worked_off(function, of=of, store_is_async=store_is_async)
    assert (done, left) == (bytes(7) + b"\x01", [])
    assert decorator == (b"16" if function is plainly_decorated else None)


@places
@pytest.mark.parametrize("function", REFUSED)
def test_a_function_whose_calls_run_nothing_is_refused(of: str, function: Any) -> None:
    worker = postroom.Worker()
    register = worker.task("q") if of == "queue" else worker.inbox(b"k")
    with pytest.raises(TypeError, match=r"is a generator function|is a class"):
        register(function)
    assert not worker.has_tasks


@forms
@places
@pytest.mark.parametrize("function", UNRUN)
def test_a_result_that_still_has_to_run_is_a_failed_attempt(
    of: str, store_is_async: bool, function: Any
) -> None:
    done, _, left = worked_off(function, of=of, store_is_async=store_is_async)
    assert done is None
    assert len(left) == 1
    assert "which still has to run" in left[0]


def test_a_function_whose_result_is_refused_is_called_once() -> None:
    calls = []

    def returns(message: Any, tx: Any) -> Any:
        calls.append(message.payload)
        return coroutine_function(message, tx) if message.payload == b"loop" else iter([])

    with postroom.testing.Store() as store:
        store.db.create_queue("q", max_attempts=1)
        worker = postroom.Worker(store.db)
        worker.task("q", concurrency=1)(returns)
        for payload in (b"loop", b"lazy"):  # the first one shows that it is called on the loop
            with store.db.begin() as tx:
                tx.enqueue("q", payload)
        assert worker.run_until_idle() == 2
    assert calls == [b"loop", b"loop", b"lazy"]


def test_a_function_that_is_now_of_the_one_form_and_now_of_the_other_runs() -> None:
    def changes(message: Any, tx: Any) -> Any:
        tx.put(b"done/" + message.payload, b"")
        return None if message.payload.startswith(b"thread") else coroutine_function(message, tx)

    with postroom.testing.Store() as store:
        store.db.create_queue("q")
        worker = postroom.Worker(store.db)
        worker.task("q", concurrency=1)(changes)
        for payload in (b"thread", b"loop", b"thread again"):
            with store.db.begin() as tx:
                tx.enqueue("q", payload)
        assert worker.run_until_idle() == 3
        assert len(list(store.db.scan(*postroom.prefix(b"done/")))) == 3
        assert postroom.integer(store.db.get(b"done")) == 1


def test_a_task_of_a_task_runs() -> None:
    with postroom.testing.Store() as store:
        store.db.create_queue("q")
        worker = postroom.Worker(store.db)

        @worker.task("q", "outer")
        @worker.task("q", "inner")
        async def both(message: Any, tx: Any) -> None:
            await tx.increment(b"done")

        with store.db.begin() as tx:
            tx.enqueue("q", b"", kind="outer")
            tx.enqueue("q", b"", kind="inner")
        assert worker.run_until_idle() == 2
        assert postroom.integer(store.db.get(b"done")) == 2
