"""``run`` and ``transactional`` do not take a call for done that has not run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import io
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import postroom
import postroom.aio


async def coroutine_function(tx: Any) -> str:
    tx.put(b"k", b"v")
    return "done"


def plainly_decorated(tx: Any) -> Any:
    return coroutine_function(tx)


class Asynchronous:
    async def __call__(self, tx: Any) -> str:
        return await coroutine_function(tx)

    async def method(self, tx: Any) -> str:
        return await coroutine_function(tx)


async def coroutine_that_returns_one(tx: Any) -> Any:
    return coroutine_function(tx)


AWAITED: list[Any] = [
    coroutine_function,
    plainly_decorated,
    functools.partial(coroutine_function),
    Asynchronous(),
    Asynchronous().method,
    lambda tx: coroutine_function(tx) if tx else None,
    coroutine_that_returns_one,
]


def generator_function(tx: Any) -> Iterator[None]:
    tx.put(b"k", b"v")
    yield


async def asynchronous_generator_function(tx: Any) -> AsyncIterator[None]:
    tx.put(b"k", b"v")
    yield


class MakesGenerators:
    def __call__(self, tx: Any) -> Iterator[None]:
        yield


class Class:
    def __init__(self, tx: Any) -> None:
        self.tx = tx


REFUSED: list[Any] = [
    generator_function,
    asynchronous_generator_function,
    functools.partial(generator_function),
    MakesGenerators(),
    Class,
    functools.partial(Class),
    "no function",
]


def submitted(tx: Any) -> Any:
    return concurrent.futures.Future()


async def coroutine_that_returns_a_generator(tx: Any) -> Any:
    return generator_function(tx)


UNRUN: list[Any] = [
    lambda tx: generator_function(tx) if tx else None,
    lambda tx: asynchronous_generator_function(tx) if tx else None,
    lambda tx: map(tx.delete, [b"k"]),
    lambda tx: itertools.chain.from_iterable([tx.scan(b"a", b"z")]),
    lambda tx: (tx.delete(key) for key in [b"k"]),
    lambda tx: tx.scan(b"a", b"z"),
    submitted,
    coroutine_that_returns_a_generator,
]


def in_sync(call: Callable[[postroom.Database], Any]) -> tuple[Any, Any]:
    with postroom.open(":memory:") as db:
        try:
            result = call(db)
        except TypeError as error:
            result = error
        return result, db.get(b"k")


def in_asyncio(call: Callable[[Any], Any]) -> tuple[Any, Any]:
    async def main() -> tuple[Any, Any]:
        async with await postroom.aio.open(":memory:") as db:
            try:
                result = await call(db)
            except TypeError as error:
                result = error
            return result, await db.get(b"k")

    return asyncio.run(main())


forms = pytest.mark.parametrize("within", [in_sync, in_asyncio])


@forms
@pytest.mark.parametrize("function", AWAITED)
def test_run_awaits_what_is_awaitable(within: Any, function: Any) -> None:
    assert within(lambda db: db.run(function)) == ("done", b"v")


@forms
@pytest.mark.parametrize("function", REFUSED)
def test_run_refuses_a_function_whose_calls_run_nothing(within: Any, function: Any) -> None:
    result, stored = within(lambda db: db.run(function))
    assert isinstance(result, TypeError)
    assert "the argument of run" in str(result) or "still has to run" in str(result)
    assert stored is None


@forms
@pytest.mark.parametrize("function", UNRUN)
def test_run_refuses_a_result_that_still_has_to_run(within: Any, function: Any) -> None:
    result, stored = within(lambda db: db.run(function))
    assert isinstance(result, TypeError)
    assert "still has to run" in str(result)
    assert stored is None


def called_with_a_transaction(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that makes the call, given a database."""

    def in_thread(db: postroom.Database) -> Any:
        with db.begin() as tx:
            return function(tx)

    async def on_loop(db: Any) -> Any:
        async with db.begin() as tx:
            return await function(tx)

    return lambda db: (in_thread if isinstance(db, postroom.Database) else on_loop)(db)


@forms
@pytest.mark.parametrize("function", AWAITED)
@pytest.mark.parametrize("joins", [False, True])
def test_a_transactional_function_is_awaited(within: Any, function: Any, joins: bool) -> None:
    made = postroom.transactional(function)
    result, stored = within(called_with_a_transaction(made) if joins else made)
    if asyncio.iscoroutine(result):
        with pytest.raises(TypeError, match=r"is a coroutine function: .* postroom\.aio"):
            asyncio.run(result)
    else:
        assert (result, stored) == ("done", b"v")


@pytest.mark.parametrize("function", REFUSED)
def test_transactional_refuses_a_function_whose_calls_run_nothing(function: Any) -> None:
    with pytest.raises(TypeError, match="a transactional function"):
        postroom.transactional(function)


@forms
@pytest.mark.parametrize("function", UNRUN)
def test_a_transactional_function_that_joins_refuses_what_still_has_to_run(
    within: Any, function: Any
) -> None:
    if within is in_sync and function is coroutine_that_returns_a_generator:
        return  # it is for the asyncio forms
    result, _ = within(called_with_a_transaction(postroom.transactional(function)))
    assert isinstance(result, TypeError)
    assert "still has to run" in str(result)


def test_a_function_may_return_values_of_any_kind() -> None:
    with postroom.open(":memory:") as db:
        db.create_queue("q")
        assert db.run(lambda tx: (tx.enqueue("q", b"", id="i"),))[0].inserted
        assert db.run(lambda tx: tx.enqueue("q", b"", id="j")).inserted
        assert db.run(lambda tx: len) is len
        assert db.run(lambda tx: io.BytesIO(b"a file")).read() == b"a file"
        assert db.run(lambda tx: db.now()) <= db.now()


def test_a_coroutine_that_needs_an_event_loop_is_told_so_by_a_thread() -> None:
    async def sleeps(tx: Any) -> None:
        tx.put(b"k", b"v")
        await asyncio.sleep(0)

    with postroom.open(":memory:") as db:
        with pytest.raises(TypeError, match=r"postroom\.aio"):
            db.run(sleeps)
        assert db.get(b"k") is None


def test_run_does_not_call_a_function_again_that_has_committed() -> None:
    calls = []

    def commits(tx: postroom.Transaction) -> None:
        calls.append(tx.increment(b"n"))
        tx.commit()
        raise postroom.Unavailable("another service")

    with postroom.open(":memory:") as db:
        with pytest.raises(postroom.Unavailable, match="another service"):
            db.run(commits)
        assert (calls, postroom.integer(db.get(b"n"))) == ([1], 1)
