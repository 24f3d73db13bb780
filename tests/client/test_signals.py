"""Handlers of signals that raise at any moment of a call: it may fail, and the store goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.server import asyncio_driver
from postroom.server.drivers import DeferredSignals

PATIENCE_SECONDS = 20.0
POINTS = 200
"""The number of moments of each call at which a signal comes, spread over all of its lines."""


class Interrupted(Exception):
    """An exception of the handler."""


@contextmanager
def raising_handler() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Lines:
    """A count of the store's lines that the main thread runs; a signal comes at one of them."""

    def __init__(self, at: int | None) -> None:
        self.seen = 0
        self._at = at
        self._at_first_line = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if "postroom" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        if event == "call":
            self._at_first_line = frame.f_code.co_name == "__exit__"
        elif self._at_first_line:
            self._at_first_line = False  # there no code can catch anything yet
        elif event == "line":
            self.seen += 1
            if self.seen == self._at:
                signal.raise_signal(signal.SIGUSR1)
        return self

    def run(self, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)


def put(db: postroom.Database) -> None:
    db.put(b"put", b"new")


def get(db: postroom.Database) -> None:
    db.get(b"put")
    db.get(b"put", at=db.now())


def commit(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.get_for_update(b"locked")
        tx.put(b"locked", b"new")
        tx.enqueue_message(b"inbox", b"message")
        tx.enqueue_update(postroom.Increment(b"sent"))


def reap(db: postroom.Database) -> None:
    with db.begin() as tx:
        taken = len(tx.reap_queue(b"inbox", 1, wait=0.001))
        tx.enqueue_update(postroom.Increment(b"taken", taken))


def lock(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.get_for_update(b"locked")


def roll_back(db: postroom.Database) -> None:
    with suppress(ZeroDivisionError), db.begin() as tx:
        tx.get_for_update(b"locked")
        raise ZeroDivisionError


def run(db: postroom.Database) -> None:
    db.run(lambda tx: tx.get_for_update(b"locked"))


CALLS = {each.__name__: each for each in (put, get, commit, reap, lock, roll_back, run)}


def locking(db: Any) -> dict[bytes, Any]:
    """Return the clients that hold locks or messages."""
    clients: dict[bytes, Any] = db._core._sender.node.root.replica.holders.clients
    return clients


def number(db: postroom.Database, key: bytes) -> int:
    found = db.get(key)
    return 0 if found is None else postroom.integer(found)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CALLS)
def test_the_store_goes_on_after_a_handler_has_raised_anywhere_in_a_call(
    tmp_path: Path, name: str
) -> None:
    call = CALLS[name]
    with postroom.open(tmp_path / "store") as db, raising_handler():
        db.put(b"put", b"old")
        with db.begin() as tx:
            for _ in range(2 * POINTS):
                tx.enqueue_message(b"inbox", b"message")
            tx.enqueue_update(postroom.Increment(b"sent", 2 * POINTS))
        call(db)
        lines = Lines(None)
        lines.run(lambda: call(db))
        assert lines.seen > POINTS
        for point in range(POINTS):
            with suppress(Interrupted):
                Lines(1 + point * lines.seen // POINTS).run(lambda: call(db))
            assert not locking(db), f"a lock is left at point {point}"
            db.put(b"after", b"%d" % point)
            assert db.get(b"after") == b"%d" % point
        db.drain()
        left = len(db.peek(b"inbox", 10_000))
        assert number(db, b"sent") - number(db, b"taken") == left
        assert db.get(b"put") in {b"old", b"new"}


@pytest.mark.parametrize("point", range(0, 400, 40))
def test_a_store_is_closed_though_a_handler_raises_meanwhile(tmp_path: Path, point: int) -> None:
    db = postroom.open(tmp_path / "store")
    db.put(b"key", b"value")
    with raising_handler(), suppress(Interrupted):
        Lines(point + 1).run(db.close)
    db.close()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"key") == b"value"


def test_a_store_on_a_loop_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await postroom.aio.open(tmp_path / "store") as db:
            calls = list[int]()
            await db.put(b"key", b"old")
            node: Any = db._sender.node
            real = node.prepare

            def prepare() -> Any:
                if not calls:
                    calls.append(1)
                    signal.raise_signal(signal.SIGUSR1)
                return real()

            node.prepare = prepare
            with suppress(Interrupted):
                await db.put(b"key", b"new")
            assert await db.get(b"key") in {b"old", b"new"}

    with raising_handler(), suppress(Interrupted):
        asyncio.run(scenario())
    with postroom.open(tmp_path / "store") as again:
        again.put(b"after", b"1")


def test_a_store_on_a_loop_goes_on_after_a_handler_has_raised_at_the_end_of_a_large_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other turn came: that of the write was taken for one that was still to come."""
    monkeypatch.setattr(asyncio_driver, "_is_large", bool)

    async def scenario() -> None:
        async with await postroom.aio.open(tmp_path / "store") as db:
            driver: Any = db._sender
            driver.loop.set_exception_handler(lambda _, told: seen.append(told["exception"]))
            end_of = driver._end_of

            def interrupted(writing: Any) -> None:
                driver._end_of = end_of
                signal.raise_signal(signal.SIGUSR1)
                end_of(writing)

            await db.put(b"key", b"old")
            driver._end_of = interrupted
            await db.put(b"key", b"new")
            driver._arm = lambda _: None  # upkeep would hide it, later
            driver.alarm.cancel()
            assert await asyncio.wait_for(db.get(b"key"), PATIENCE_SECONDS) == b"new"
            await asyncio.wait_for(db.put(b"key", b"newest"), PATIENCE_SECONDS)
            assert await db.get(b"key") == b"newest"

    seen: list[Any] = []
    with raising_handler():
        asyncio.run(scenario())
    assert [type(each) for each in seen] == [Interrupted]


def test_a_handler_runs_once_when_the_turn_is_over() -> None:
    told, deferred = list[str](), DeferredSignals()
    before = signal.signal(signal.SIGUSR1, lambda *_: told.append("handled"))
    try:
        with deferred:
            with deferred:
                signal.raise_signal(signal.SIGUSR1)
            told.append("turn")
        assert told == ["turn", "handled"]
        signal.raise_signal(signal.SIGUSR1)
        assert told == ["turn", "handled", "handled"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_handler_is_back_also_if_it_raises() -> None:
    deferred = DeferredSignals()
    with raising_handler():
        handler = signal.getsignal(signal.SIGUSR1)
        with pytest.raises(Interrupted), deferred:
            signal.raise_signal(signal.SIGUSR1)
        assert signal.getsignal(signal.SIGUSR1) is handler
        with deferred:
            assert signal.getsignal(signal.SIGUSR1) is not handler
        assert signal.getsignal(signal.SIGUSR1) is handler


def test_the_handlers_of_asyncio_stay_where_they_are() -> None:
    async def look() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: None)
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR2)
        with DeferredSignals():
            assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR2)) == before
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR2)

    asyncio.run(look())


def test_a_control_c_during_a_turn_cancels_the_task_and_leaves_the_store_whole() -> None:
    async def scenario() -> None:
        async with await postroom.aio.open(":memory:") as db:
            node: Any = db._sender.node
            evaluate = node.replicas.evaluate

            def interrupted() -> None:
                node.replicas.evaluate = evaluate
                signal.raise_signal(signal.SIGINT)
                evaluate()

            node.replicas.evaluate = interrupted
            try:
                await db.put(b"key", b"1")
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await db.put(b"after", b"2")
                seen.append(await db.get(b"after"))
                raise

    seen: list[bytes] = []
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scenario())
    assert seen == [b"2"]


def test_closing_lets_go_of_the_folder_although_a_handler_raises_after_a_large_write(
    tmp_path: Path,
) -> None:
    class Written:
        def join(self) -> None:
            """Do nothing: the write is done."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    async def scenario() -> None:
        db = await postroom.aio.open(tmp_path / "store")
        await db.put(b"key", b"value")
        driver: Any = db._sender
        driver._writing, driver._finish = Written(), interrupted
        with pytest.raises(KeyboardInterrupt):
            await driver.close()

    asyncio.run(scenario())
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"key") == b"value"


def test_other_threads_leave_handlers_alone() -> None:
    deferred, found = DeferredSignals(), list[Any]()

    def look() -> None:
        with deferred:
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_a_transaction_that_is_interrupted_before_its_commit_is_sent_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postroom.open(tmp_path / "store") as db:

        def interrupt(_: object) -> None:
            raise Interrupted

        tx = db.begin()
        with suppress(Interrupted), tx:
            tx.get_for_update(b"locked")
            tx.put(b"locked", b"never")
            monkeypatch.setattr(type(tx.core), "_requests", interrupt)
        monkeypatch.undo()
        assert tx.closed
        with db.begin(timeout=5) as other:
            assert other.get_for_update(b"locked") is None
