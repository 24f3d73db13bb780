"""Calls that are interrupted (Control-C) leave nothing behind, wherever that finds their thread.

Interrupts are raised where the interpreter looks for signals: in the midst of a wait, just before
it and just behind it. Others come while a request is handed over, or a store is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

import postroom
from postroom.client.blocking import _next, run_blocking
from postroom.server.node import Node
from postroom.server.thread_driver import ThreadDriver
from tests.client.test_interrupts import _InterruptedAfter, end_upkeep, without_upkeep
from tests.remote.servers import Server

PATIENCE_SECONDS = 60

CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "claim": lambda db: db.queue("q").claim(1),
    "claim, waiting": lambda db: db.queue("empty").claim(1, wait=50),
    "hold": lambda db: db.hold().__aenter__(),
    "snapshot": lambda db: db.snapshot().__aenter__(),
    "watch": lambda db: _next(db.watch(b"k")),
    "scan": lambda db: _next(db.scan()),
    "reap": lambda db: db.begin().reap_queue(b"empty", wait=50),
}


def in_time(action: Callable[[], object]) -> None:
    """Check that ``action`` comes to its end."""
    acting = threading.Thread(target=action, daemon=True)
    acting.start()
    acting.join(PATIENCE_SECONDS)
    assert not acting.is_alive()


@pytest.fixture
def db() -> Iterator[postroom.Database]:
    with postroom.open(":memory:") as db:
        db.create_queue("q")
        db.create_queue("empty")
        with db.begin() as tx:
            tx.enqueue("q", b"message")
            tx.put(b"k", b"v")
        yield db


def lapse(db: postroom.Database) -> None:
    """End the lease: every answer waits until a turn takes another lease."""
    node: Node = db._core._sender.node  # type: ignore[attr-defined]
    node.root.replica.lease_holder._until = 0.0


def check_nothing_is_held(db: postroom.Database) -> None:
    node: Node = db._core._sender.node  # type: ignore[attr-defined]
    db.put(b"k", b"2")  # a turn, for what was posted
    sizes = node.sizes()
    assert (sizes["protections"], sizes["parked"], sizes["blocked"]) == (0, 0, 0)
    (message,) = db.queue("q").claim(1)
    assert message.payload == b"message"


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_between_the_request_and_the_wait_withdraws_it(
    db: postroom.Database, name: str
) -> None:
    call = _InterruptedAfter(CALLS[name](db._core), 1)
    with without_upkeep(db):
        lapse(db)
        with pytest.raises(KeyboardInterrupt):
            run_blocking(call)  # type: ignore[arg-type]
    check_nothing_is_held(db)


@pytest.mark.parametrize("name", ["claim", "hold", "snapshot", "scan"])
def test_an_interrupt_when_the_answer_is_there_has_it_taken_back(
    db: postroom.Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ThreadDriver.wait_for

    def wait_for(driver: ThreadDriver, answer: Any) -> None:
        real(driver, answer)
        monkeypatch.setattr(ThreadDriver, "wait_for", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadDriver, "wait_for", wait_for)
    with without_upkeep(db):
        lapse(db)
        with pytest.raises(KeyboardInterrupt):
            run_blocking(CALLS[name](db._core))
    check_nothing_is_held(db)


def test_the_store_is_not_handed_to_an_interrupted_thread(
    db: postroom.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was waited for by all others, for ever."""
    driver: Any = db._core._sender
    real = driver._take_over

    def take_over(answer: Any, **options: bool) -> bool:
        if answer in driver._waiting:  # it has said that it is about to sleep
            raise KeyboardInterrupt
        return real(answer, **options)

    monkeypatch.setattr(driver, "_take_over", take_over)
    with without_upkeep(db):
        with pytest.raises(KeyboardInterrupt):
            db.queue("empty").claim(1, wait=50)
        monkeypatch.undo()
        with driver._lock:
            driver._hand_over(wanted=True)  # a driver that has its answer does that
        assert not driver._driving
    in_time(lambda: db.put(b"k", b"2"))
    check_nothing_is_held(db)


@pytest.mark.parametrize("part", ["_drive_until_quiet", "join"])
def test_closing_that_is_interrupted_lets_the_folder_go(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    db = postroom.open(tmp_path / "store")
    db.put(b"k", b"v")
    driver: Any = db._core._sender
    where = driver._background if part == "join" else driver

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(where, part, interrupted)
    with pytest.raises(KeyboardInterrupt):
        db.close()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"k") == b"v"


def test_closing_that_is_interrupted_does_not_close_the_files_of_a_turn_under_way(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = postroom.open(tmp_path / "store")
    db.put(b"k", b"u")
    driver: Any = db._core._sender
    end_upkeep(db)
    node: Node = driver.node
    writes, goes_on, events = threading.Event(), threading.Event(), list[str]()
    real_write, real_close, real_wait = node.write, node.close, driver._await_driver

    def write(staged: Any) -> Any:
        writes.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        events.append("written")
        return real_write(staged)

    def close(*_: Any) -> None:
        events.append("closed")
        real_close()

    def interrupted() -> None:
        monkeypatch.setattr(driver, "_await_driver", real_wait)
        goes_on.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(node, "write", write)
    monkeypatch.setattr(node, "close", close)
    monkeypatch.setattr(driver, "_await_driver", interrupted)
    putting = threading.Thread(target=db.put, args=(b"k", b"v"), daemon=True)
    putting.start()
    assert writes.wait(PATIENCE_SECONDS)
    with pytest.raises(KeyboardInterrupt):
        db.close()
    putting.join(PATIENCE_SECONDS)
    assert events[-1] == "closed"
    assert set(events[:-1]) == {"written"}


def test_an_interrupt_while_a_request_is_handed_over_stops_no_other_one() -> None:
    """The loop was never told of it, nor of any that came later."""
    with Server() as server, postroom.connect(server.address, insecure=True) as db:
        sender: Any = db.sender
        loop, interrupts = sender._loop, [KeyboardInterrupt]

        class Loop:
            def call_soon_threadsafe(self, *given: Any) -> Any:
                if interrupts:
                    raise interrupts.pop()
                return loop.call_soon_threadsafe(*given)

        sender._loop = Loop()
        with pytest.raises(KeyboardInterrupt):
            db.put(b"k", b"1")
        sender._loop = loop
        in_time(lambda: db.put(b"k", b"2"))
        assert db.get(b"k") == b"2"
        interrupts.append(KeyboardInterrupt)
        sender._loop = Loop()
        with suppress(KeyboardInterrupt), db.snapshot():
            pytest.fail("it was interrupted")
        sender._loop = loop
        in_time(db.now)
        assert server._driver.node.sizes()["protections"] == 0
