"""Functions that end oddly: that is an attempt that has failed, and nothing hangs or spins."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from tests.client.worker.running import WAIT_SECONDS

ATTEMPTS = 2
YEARS = 300 * 365 * 86400
"""A delay that is longer than any."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("nobody can say it")


def cancelled() -> None:
    raise asyncio.CancelledError


def cancelled_elsewhere() -> None:
    raise concurrent.futures.CancelledError


def exhausted() -> None:
    next(iter([]))


def unspeakable() -> None:
    raise Unspeakable


def no_delay() -> None:
    raise postroom.Reject("not now", delay=-1)


class Base(BaseException):
    """An end that is no exception."""


class Quits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Odd(postroom.Reject):
    def __init__(self) -> None:
        """Make an error without a text."""


def raising(error: BaseException) -> Callable[[], None]:
    def end() -> None:
        raise error

    return end


RAISED: list[tuple[BaseException, str]] = [
    (SystemExit(3), "SystemExit: 3"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (Base("odd"), "Base: odd"),
    (BaseExceptionGroup("many", [SystemExit(1)]), "BaseExceptionGroup"),
    (Quits(), "Quits"),
    (ValueError("\ud800"), "ValueError"),
    (ValueError("long" * 1_000_000), "ValueError: long"),
    (Odd(), "rejected by its function"),
    (postroom.Reject("not now", delay=10**400), "not now"),
    (postroom.Reject("not now", delay=float("nan")), "not now"),
    (postroom.Reject("not now", delay="soon"), "not now"),
    (postroom.Reject(Quits(), delay=1), "SystemExit"),  # type: ignore[arg-type]
    (postroom.Reject(Unspeakable(), delay=1), "ValueError"),  # type: ignore[arg-type]
    (postroom.LeaseLost("of another message"), "of another message"),
]


ODD = [
    *((raising(error), why) for error, why in RAISED),
    (cancelled, "CancelledError"),
    (cancelled_elsewhere, "CancelledError"),
    (exhausted, "StopIteration"),
    (unspeakable, "Unspeakable"),
    (no_delay, "not now"),
]
odd = pytest.mark.parametrize(("end", "why"), ODD)
forms = pytest.mark.parametrize("is_async", [True, False])


def function_of(end: Callable[[], None], calls: list[Any], *, is_async: bool) -> Any:
    def function(message: Any, tx: Any) -> None:
        calls.append(message)
        end()

    async def coroutine(message: Any, tx: Any) -> None:
        function(message, tx)

    return coroutine if is_async else function


@odd
@forms
@pytest.mark.parametrize("store_is_async", [True, False])
def test_a_task_whose_function_ends_oddly_has_failed(
    end: Callable[[], None], why: str, is_async: bool, store_is_async: bool
) -> None:
    settings: Any = {"max_attempts": ATTEMPTS, "min_backoff": 60, "max_backoff": 60}
    calls: list[Any] = []
    function = function_of(end, calls, is_async=is_async)

    async def main() -> Any:
        clock = postroom.testing.Clock()
        async with await postroom.testing.open_async(clock=clock) as db:
            q = await db.create_queue("q", **settings)
            worker = postroom.aio.Worker(db)
            worker.task("q")(function)
            async with db.begin() as tx:
                tx.enqueue("q", b"")
            for _ in range(ATTEMPTS):
                async with asyncio.timeout(WAIT_SECONDS):
                    assert await worker.run_until_idle() == 1
                clock.advance(YEARS)
            return await q.dead_letters()

    if store_is_async:
        dead = asyncio.run(main())
    else:
        with postroom.testing.Store() as store:
            q = store.db.create_queue("q", **settings)
            worker = postroom.Worker(store.db)
            worker.task("q")(function)
            with store.db.begin() as tx:
                tx.enqueue("q", b"")
            for _ in range(ATTEMPTS):
                assert worker.run_until_idle() == 1
                store.advance(YEARS)
            dead = q.dead_letters()
    assert why in dead[0].last_error
    assert len(calls) == ATTEMPTS


@odd
@forms
def test_an_inbox_whose_function_ends_oddly_has_failed(
    store: postroom.testing.Store, end: Callable[[], None], why: str, is_async: bool
) -> None:
    calls: list[Any] = []
    worker = postroom.Worker(store.db)
    worker.inbox(b"box/", max_attempts=ATTEMPTS)(function_of(end, calls, is_async=is_async))
    with store.db.begin() as tx:
        tx.enqueue_message(b"box/1", b"")
    for _ in range(ATTEMPTS):
        worker.run_until_idle()
        store.advance(YEARS)
    assert len(calls) == ATTEMPTS
    (letter,) = store.db.dead_letters()
    assert why in letter.reason


# --- messages that a function has settled itself


def acknowledged(message: Any, tx: Any) -> None:
    tx.acknowledge("q", message)


def acknowledged_by_id(message: Any, tx: Any) -> None:
    tx.acknowledge("q", [message.id], kind=message.kind)


def given_back(message: Any, tx: Any) -> None:
    tx.reject("q", message, 3600, reason="later")


def cancelled_for_good(message: Any, tx: Any) -> None:
    tx.cancel("q", message)


SETTLED = [
    (acknowledged, "acknowledged"), (acknowledged_by_id, "acknowledged"),
    (given_back, "scheduled"), (cancelled_for_good, "cancelled"),
]  # fmt: skip


@forms
@pytest.mark.parametrize(("settle", "counted"), SETTLED)
def test_a_message_settled_by_its_function_stays_settled(
    store: postroom.testing.Store, settle: Any, counted: str, is_async: bool
) -> None:
    q = store.db.create_queue("q")
    worker = postroom.Worker(store.db)

    def function(message: Any, tx: Any) -> None:
        tx.put(b"done", b"yes")
        settle(message, tx)

    async def coroutine(message: Any, tx: Any) -> None:
        function(message, tx)

    worker.task("q", "k", concurrency=1)(coroutine if is_async else function)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", kind="k")
        tx.enqueue("q", b"", kind="k")
    assert worker.run_until_idle() == 2
    assert store.db.get(b"done") == b"yes"
    assert getattr(q.stats(), counted) == 2


# --- errors that end only their call


@pytest.mark.parametrize("store_is_async", [False, True])
def test_a_function_that_cancels_its_own_task_has_failed(store_is_async: bool) -> None:
    async def cancels(message: Any, tx: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(WAIT_SECONDS)

    async def main() -> Any:
        async with await postroom.testing.open_async() as db:
            q = await db.create_queue("q", max_attempts=1)
            worker = postroom.aio.Worker(db)
            worker.task("q")(cancels)
            async with db.begin() as tx:
                tx.enqueue("q", b"")
            async with asyncio.timeout(WAIT_SECONDS):
                assert await worker.run_until_idle() == 1
            return await q.dead_letters()

    if store_is_async:
        (dead,) = asyncio.run(main())
    else:
        with postroom.testing.Store() as store:
            q = store.db.create_queue("q", max_attempts=1)
            worker = postroom.Worker(store.db)
            worker.task("q")(cancels)
            with store.db.begin() as tx:
                tx.enqueue("q", b"")
            assert worker.run_until_idle() == 1
            (dead,) = q.dead_letters()
    assert "CancelledError" in dead.last_error


@forms
def test_a_message_whose_function_loses_another_lease_has_failed(
    store: postroom.testing.Store, is_async: bool
) -> None:
    q = store.db.create_queue("q", max_attempts=1)
    store.db.create_queue("other")
    with store.db.begin() as tx:
        tx.enqueue("other", b"")
        tx.enqueue("q", b"")
    (lost,) = store.db.queue("other").claim(1)
    store.db.queue("other").reject(lost, 0)
    worker = postroom.Worker(store.db)

    def function(message: Any, tx: Any) -> None:
        tx.put(b"k", b"v")
        tx.acknowledge("other", lost)

    async def coroutine(message: Any, tx: Any) -> None:
        function(message, tx)

    worker.task("q")(coroutine if is_async else function)
    assert worker.run_until_idle() == 1
    (dead,) = q.dead_letters()
    assert "LeaseLost" in dead.last_error
    assert store.db.get(b"k") is None


def test_a_worker_goes_on_behind_a_function_that_exits(store: postroom.testing.Store) -> None:
    q = store.db.create_queue("q", max_attempts=1)
    worker = postroom.Worker(store.db)

    @worker.task("q")
    def function(message: Any, tx: Any) -> None:
        if message.payload == b"exit":
            raise SystemExit(3)

    with store.db.begin() as tx:
        for payload in (b"exit", b"", b""):
            tx.enqueue("q", payload)
    assert worker.run_until_idle() == 3
    assert (q.stats().acknowledged, q.stats().dead) == (2, 1)
