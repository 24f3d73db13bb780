"""Ends of blocks: by the application's own exception, at once, whatever the store is up to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import postroom
from tests.client.hand_driver import RemoteDriver
from tests.client.stores import Store


class Mistake(Exception):
    """An error of the application."""


@pytest.fixture
def remote() -> Iterator[Store]:
    store = Store(remote=True)
    store.db.put(b"a", b"1")
    yield store
    driver(store).cut = False
    store.db.close()


def driver(store: Store) -> RemoteDriver:
    assert isinstance(store.driver, RemoteDriver)
    return store.driver


def cut(store: Store) -> None:
    driver(store).cut = True


def locking(store: Store) -> AbstractContextManager[Any]:
    tx = store.db.begin()
    tx.get_for_update(b"a")
    return tx


def snapshot(store: Store) -> AbstractContextManager[Any]:
    return store.db.snapshot()


def make_a_mistake(block: AbstractContextManager[Any], meanwhile: Callable[[], object]) -> None:
    with block:
        meanwhile()
        raise Mistake


BLOCKS = {"transaction": locking, "snapshot": snapshot}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_mistake_survives_a_network_that_is_gone(
    remote: Store, block: Callable[[Store], AbstractContextManager[Any]]
) -> None:
    before = remote.clock.seconds
    with pytest.raises(Mistake):
        make_a_mistake(block(remote), lambda: cut(remote))
    assert remote.clock.seconds == before  # nothing was waited for


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_a_mistake_survives_a_store_that_is_closed(
    store: Store, block: Callable[[Store], AbstractContextManager[Any]]
) -> None:
    with pytest.raises(Mistake):
        make_a_mistake(block(store), store.db.close)


def test_rollback_cannot_fail(remote: Store) -> None:
    tx = remote.db.begin()
    tx.get_for_update(b"a")
    driver(remote).cut = True
    before = remote.clock.seconds
    tx.rollback()
    assert (tx.closed, remote.clock.seconds) == (True, before)


async def holding_a_lock(store: Store) -> None:
    async with store.core.begin() as tx:
        await tx.get_for_update(b"a")
        await store.driver.sleep(1000)


async def holding_a_message(store: Store) -> None:
    async with store.core.begin() as tx:
        await tx.reap_queue(b"inbox")
        await store.driver.sleep(1000)


async def scanning(store: Store) -> None:
    async for _ in store.core.scan():
        await store.driver.sleep(1000)


async def with_a_snapshot(store: Store) -> None:
    async with store.core.snapshot():
        await store.driver.sleep(1000)


@pytest.mark.parametrize(
    "task", [holding_a_lock, holding_a_message, scanning, with_a_snapshot], ids=lambda f: f.__name__
)
def test_a_task_that_is_cancelled_ends_at_once(
    remote: Store, task: Callable[[Store], Coroutine[Any, Any, None]]
) -> None:
    coroutine = task(remote)
    running = remote.start(coroutine)
    assert not running.done
    driver(remote).cut = True
    with pytest.raises(asyncio.CancelledError):
        coroutine.throw(asyncio.CancelledError())  # else it would say what it waits for


def test_a_lock_is_free_once_the_rollback_has_arrived(store: Store) -> None:
    with pytest.raises(Mistake):
        make_a_mistake(locking(store), lambda: None)
    before = store.clock.seconds
    with store.db.begin() as tx:
        tx.get_for_update(b"a")
    assert store.clock.seconds == before


def test_a_block_that_ends_well_still_says_that_the_commit_failed(store: Store) -> None:
    tx = store.db.begin()
    tx.get(b"a")
    store.db.put(b"a", b"2")
    with pytest.raises(postroom.TransactionConflict), tx:
        tx.put(b"b", b"1")


def test_closing_does_not_wait_to_free_what_nobody_holds_any_more(remote: Store) -> None:
    tx = remote.db.begin()
    tx.get_for_update(b"a")
    cut(remote)
    tx.rollback()
    for number in list(driver(remote)._streams):
        driver(remote).close_link(number)
        driver(remote).router.disconnected(number, postroom.Unavailable("gone"))
    assert driver(remote).router.is_quiet()


def test_a_snapshot_that_outlives_a_stream_protects_nothing_when_it_has_ended() -> None:
    """It was protected again by the welcome of the next stream, and once more by its first answer.

    Garbage was never collected any more while the client was there.
    """
    store = Store(remote=True)
    store.db.put(b"key", b"1")
    with store.db.snapshot() as snapshot, store.db.snapshot() as other:
        store.restart()
        assert snapshot.get(b"key") == b"1"
        store.db.put(b"key", b"2")
        assert other.get(b"key") == b"1"
        assert store.node.sizes()["protections"] == 2
    store.driver.settle()
    assert store.node.sizes()["protections"] == 0
    store.db.close()
