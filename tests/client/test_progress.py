"""Transactions that lose take locks on what they lost: in the end each of them commits."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client.commits import Lost
from postroom.errors import TransactionConflict, Unavailable
from postroom.limits import LOCKS_AT_ONCE_MAX
from tests.client.stores import Store

PATIENCE_SECONDS = 60
KEYS = [b"k%d" % number for number in range(100)]


def lose_once(store: Store, *keys: bytes) -> Any:
    """Return a function that writes ``keys`` once, when a transaction has read."""
    left = list(keys)

    def disturb() -> None:
        while left:
            store.db.put(left.pop(), b"new")

    return disturb


def test_a_commit_that_loses_names_all_that_it_lost_on(store: Store) -> None:
    tx = store.db.begin()
    tx.get_many(KEYS)
    for key in KEYS[10:20]:
        store.db.put(key, b"new")
    tx.put(b"other", b"1")
    with pytest.raises(TransactionConflict) as lost:
        tx.commit()
    assert set(lost.value.keys) == set(KEYS[10:20])


def test_a_commit_that_loses_on_a_span_names_key_and_span(store: Store) -> None:
    tx = store.db.begin()
    list(tx.scan(b"a", b"c"))
    store.db.put(b"b", b"new")
    tx.put(b"other", b"1")
    with pytest.raises(TransactionConflict) as lost:
        tx.commit()
    assert lost.value.keys == (b"b",)
    assert lost.value.spans == ((b"a", b"c"),)


def test_the_next_try_of_run_holds_off_those_who_write_what_it_lost_on(store: Store) -> None:
    disturb, waiting = lose_once(store, *KEYS), list[Any]()

    def read_all(tx: postroom.Transaction) -> None:
        tx.get_many(KEYS)
        if waiting or store.db.get(KEYS[0]) == b"new":
            waiting.extend(store.start(store.core.put(key, b"late")) for key in KEYS[:2])
            assert not any(each.done for each in waiting)
        disturb()
        tx.put(b"sum", b"1")

    store.db.run(read_all)
    assert len(waiting) == 2
    for each in waiting:
        each.result()
    assert store.db.get(KEYS[1]) == b"late"
    assert store.db.get(b"sum") == b"1"


def test_a_run_that_lost_twice_on_a_span_locks_it(store: Store) -> None:
    tries, waiting = list[bytes](), list[Any]()

    def scan_all(tx: postroom.Transaction) -> None:
        tries.append(tx.id)
        list(tx.scan(b"a", b"c"))
        if len(tries) < 3:
            store.db.put(b"b%d" % len(tries), b"new")
        else:
            waiting.append(store.start(store.core.put(b"b", b"late")))
        tx.put(b"sum", b"1")

    store.db.run(scan_all)
    assert len(tries) == 3
    waiting[0].result()
    assert store.db.get(b"b") == b"late"


def test_the_locks_of_the_next_try_are_bounded() -> None:
    lost = Lost()
    for first in range(0, 1000, 100):
        keys = tuple(b"%d" % number for number in range(first, first + 100))
        assert lost.add(TransactionConflict("", keys), [b"w%d" % each for each in range(1000)])
    assert len(lost.keys) == LOCKS_AT_ONCE_MAX
    assert set(keys) <= lost.keys.keys()


def test_waits_that_have_ended_leave_no_memory_behind() -> None:
    store = Store()
    holder = store.db.begin()
    holder.get_for_update(b"a")
    tx = store.core.begin()
    tx.put(b"a", b"1")
    tx.put(b"b", b"1")
    given_up = store.start(tx.commit())
    assert not given_up.done
    store.driver.cancel(given_up)
    kept = store.start(store.core.put(b"a", b"2"))
    holder.rollback()
    kept.result()
    left = {name: size for name, size in store.node.sizes().items() if size}
    assert left.keys() <= {"timers", "deadlines"}
    assert store.db.get(b"b") is None


def test_a_commit_that_waits_is_told_when_the_store_stops() -> None:
    store = Store()
    store.db.begin().get_for_update(b"a")
    waiting = store.start(store.core.put(b"a", b"1"))
    store.node.root.replica.fail_all(Unavailable("it was stopped", retry_after=60.0))
    store.driver.settle()
    with pytest.raises(Unavailable, match="it was stopped"):
        waiting.result()


@pytest.mark.parametrize("read", ["get", "get_for_update"])
def test_a_transaction_of_many_keys_commits_beside_those_who_write_them(
    tmp_path: Path, read: str
) -> None:
    stop, calls = threading.Event(), list[int]()

    def write(db: Any, first: int) -> None:
        number = first
        while not stop.is_set():
            db.put(KEYS[number % len(KEYS)], b"theirs")
            number += 7

    def change_all(tx: postroom.Transaction) -> None:
        calls.append(1)
        for key in KEYS:
            getattr(tx, read)(key)
        for key in KEYS:
            tx.delete(key)

    with postroom.open(tmp_path / "store") as db:
        writers = [
            threading.Thread(target=write, args=(db, number), daemon=True) for number in range(4)
        ]
        for each in writers:
            each.start()
        try:
            for _ in range(5):
                db.run(change_all)
        finally:
            stop.set()
            for each in writers:
                each.join(PATIENCE_SECONDS)
    assert len(calls) <= 5 * 4


def test_sixty_four_tasks_on_one_key_take_their_turns(tmp_path: Path) -> None:
    done = dict.fromkeys(range(64), 0)

    async def scenario() -> None:
        async with await postroom.aio.open(tmp_path / "store") as db:

            async def add(task: int) -> None:
                while min(done.values()) < 4:
                    await db.run(lambda tx: tx.increment(b"n"))
                    done[task] += 1

            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.gather(*map(add, done))
            assert postroom.integer(await db.get(b"n")) == sum(done.values())

    asyncio.run(scenario())
    assert max(done.values()) < 40, "some had nearly all of the turns"
