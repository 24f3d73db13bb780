"""Embedded stores with several ranges: requests find the range of their keys, or are cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

import postroom
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import resolve
from postroom.errors import Invalid, TransactionConflict
from postroom.kv.clock import SystemClock
from postroom.kv.memory import MemoryEngine
from postroom.limits import SPLITS_DURING_CALL_MAX
from postroom.messaging.bulk_requests import ScanRecords
from postroom.raft.interface import NoPeers
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import Call
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.listing import ListRanges
from postroom.ranges.requests import CommitTransaction, Get, GetMany, Put
from postroom.ranges.transactions.coordinator import Coordinator
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.node import Node
from postroom.server.thread_driver import ThreadDriver
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.hosting import bound, cut


def _node() -> Node:
    node = Node(MemoryEngine(), SystemClock(), Random(1), NoPeers(), NodeOptions(rests_alone=True))
    cut(node, b"m", b"z")
    return node


@contextmanager
def threaded() -> Iterator[tuple[ThreadDriver, blocking.CoreDatabase]]:
    driver = ThreadDriver(_node(), Random(2))
    driver.start()
    core = asynchronous.CoreDatabase(driver, resolve(None), Store._no_status, driver.close)
    with blocking.CoreDatabase(driver, core) as db:
        yield driver, db


@asynccontextmanager
async def on_a_loop() -> AsyncIterator[tuple[AsyncioDriver, asynchronous.CoreDatabase]]:
    driver = AsyncioDriver(_node(), Random(2))
    driver.start()
    core = asynchronous.CoreDatabase(driver, resolve(None), Store._no_status, driver.close)
    async with core as db:
        yield driver, db


async def _answer(driver: Any, request: Any) -> Any:
    return await driver.send(request)


def test_threads_use_all_ranges_and_list_them() -> None:
    with threaded() as (driver, db):
        for key in (b"a", b"m", b"z"):
            db.put(key, key)
            assert db.get(key) == key
        listed = driver.run(_answer(driver, ListRanges(b"b", None)))
        assert [(each.id, each.start) for each in listed] == [(1, b""), (2, b"m"), (3, b"z")]
        (one,) = driver.run(_answer(driver, ListRanges(b"n", b"o")))
        assert one.id == 2


def test_a_commit_over_several_ranges_is_taken_under_the_lock_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, takes = list[bool](), Coordinator.takes

    def taking(coordinator: Coordinator, call: Call) -> bool:
        is_taken = takes(coordinator, call)
        if is_taken:
            taken.append(driver._lock.locked())
        return is_taken

    monkeypatch.setattr(Coordinator, "takes", taking)
    with threaded() as (driver, db), db.begin() as tx:
        tx.put(b"a", b"1")
        tx.put(b"n", b"1")
    assert taken == [True]


def test_a_commit_that_meets_a_split_is_looked_at_again_when_its_turn_comes() -> None:
    node = _node()
    replica = node.replicas.by_id(1)

    class SplitMeanwhile(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            bound(node, 1, b"", b"f")
            return super().__iter__()

    class Commit(CommitTransaction[Any], frozen=True):
        def single_keys(self) -> list[bytes]:
            return SplitMeanwhile([b"a", b"k"])

    call = Asked(Commit(b"t" * 16, 0, 60.0, 0, b"a", [], [], [Put(b"k", b"1")]))
    assert node.replicas.submit_commit(call)
    assert replica.bounds.end == b"f"
    assert call.within is not replica.bounds.descriptor


def test_a_list_beside_a_thread_that_splits_leaves_no_range_out_and_has_none_twice() -> None:
    starts = [b"%02d" % number for number in range(40)]
    Random(1).shuffle(starts)

    with postroom.open(":memory:") as db, ThreadPoolExecutor() as pool:
        splitting = pool.submit(lambda: [db.split(key) for key in starts])
        listed = []
        while not splitting.done():
            listed.append(db.ranges())
        splitting.result()
        listed.append(db.ranges())
    for found in listed:
        bounds = [(each.start, each.end) for each in found]
        assert [b"", *(end for _, end in bounds)] == [*(start for start, _ in bounds), None]
    assert len(listed[-1]) == len(starts) + 1


def test_tasks_use_all_ranges_and_list_them() -> None:
    async def run() -> None:
        async with on_a_loop() as (driver, db):
            for key in (b"a", b"m", b"z"):
                await db.put(key, key)
                assert await db.get(key) == key
            listed = await _answer(driver, ListRanges(b"", None))
            assert [each.id for each in listed] == [1, 2, 3]
            values = await _answer(driver, GetMany([b"z", b"b", b"m"], 0))
            assert values.values == [b"z", None, b"m"]
            with pytest.raises(Invalid, match="2 ranges"):
                await _answer(driver, ScanRecords("image", b"a", b"n", 0))

    asyncio.run(run())


def test_a_transaction_over_several_ranges_commits_in_all_of_them() -> None:
    with threaded() as (_, db):
        for number in range(20):
            with db.begin() as tx:
                for key in (b"a", b"n", b"z"):
                    before = tx.get(key)
                    assert before == (b"%d" % (number - 1) if number else None)
                    tx.put(key, b"%d" % number)
        assert [db.get(key) for key in (b"a", b"n", b"z")] == [b"19"] * 3


def test_one_of_two_transactions_that_read_what_the_other_writes_is_refused() -> None:
    with threaded() as (_, db):
        one, other = db.begin(), db.begin()
        assert one.get(b"a") is None
        assert other.get(b"n") is None
        one.put(b"n", b"1")
        other.put(b"a", b"1")
        one.commit()
        with pytest.raises(TransactionConflict):
            other.commit()
        assert db.get(b"a") is None


def test_a_record_of_a_range_that_does_not_exist_is_told() -> None:
    with threaded() as (_, db), pytest.raises(Invalid, match="there is no range 77"):
        db.discard([(77).to_bytes(8, "big").hex() + 20 * "00"])


def test_a_request_whose_range_was_split_while_it_waited_is_sent_again() -> None:
    with threaded() as (driver, db):
        db.put(b"n", b"value")
        replicas, submit = driver.node.replicas, driver.node.replicas.submit
        wrong = [WrongRange(RangeDescriptor(2, b"m", b"z", 2))]

        def once(call: Any) -> None:
            if wrong:
                call.complete(None, wrong.pop())
            else:
                submit(call)

        replicas.submit = once  # type: ignore[method-assign]
        assert driver.run(_answer(driver, Get(b"n"))).value == b"value"
        assert not wrong


def test_a_commit_over_two_ranges_is_sent_again_when_its_first_range_was_split() -> None:
    with threaded() as (driver, db):
        replicas, submit = driver.node.replicas, driver.node.replicas.submit
        wrong = [WrongRange(RangeDescriptor(1, b"", b"m", 2))]  # it knows nothing of the others

        def once(call: Any) -> None:
            if wrong and type(call.request) is CommitTransaction:
                call.complete(None, wrong.pop())
            else:
                submit(call)

        replicas.submit = once  # type: ignore[method-assign]
        with db.begin() as tx:
            tx.put(b"a", b"1")
            tx.put(b"n", b"1")
        assert [db.get(b"a"), db.get(b"n")] == [b"1", b"1"]
        assert not wrong


def test_replaying_or_discarding_no_dead_letters_does_nothing() -> None:
    with threaded() as (_, db):
        assert db.replay([]) == db.discard([]) == 0


def test_a_request_that_always_comes_back_ends_with_an_error() -> None:
    with threaded() as (driver, _):
        asked = list[Any]()

        def never(call: Any) -> None:
            asked.append(call)
            call.complete(None, WrongRange(RangeDescriptor(2, b"m", b"z", 2)))

        driver.node.replicas.submit = never  # type: ignore[method-assign]
        with pytest.raises(WrongRange):
            driver.run(_answer(driver, Get(b"n")))
        assert len(asked) == SPLITS_DURING_CALL_MAX + 1


def test_threads_go_on_while_their_ranges_split(tmp_path: Path) -> None:
    names = [b"k%02d" % number for number in range(40)]
    is_over = threading.Event()
    with postroom.open(tmp_path / "store") as db, ThreadPoolExecutor(4) as pool:

        def write(first: int) -> int:
            """Write the thread's own keys over and over; return the last value of each."""
            number = 0
            while not is_over.is_set():
                number += 1
                for name in names[first::4]:
                    db.put(name, b"%d" % number)
                    assert db.get(name) == b"%d" % number
            return number

        try:
            writing = [pool.submit(write, first) for first in range(4)]
            for name in names[::3]:
                made = db.split(name) if name != names[0] else db.split(b"a")
                assert made.start in {name, b"a"}
        finally:
            is_over.set()
        for first, each in enumerate(writing):
            last = each.result()
            assert [db.get(name) for name in names[first::4]] == [b"%d" % last] * 10
        assert len(db.ranges()) == 15


def test_tasks_go_on_while_their_ranges_split() -> None:
    async def run() -> None:
        async with on_a_loop() as (_, db):
            is_over: list[None] = []

            async def write(name: bytes) -> None:
                number = 0
                while not is_over:
                    number += 1
                    await db.put(name, b"%d" % number)
                    assert await db.get(name) == b"%d" % number

            tasks = [asyncio.ensure_future(write(b"k%02d" % each)) for each in range(20)]
            for number in range(0, 20, 3):
                assert (await db.split(b"k%02d" % number)).start == b"k%02d" % number
            is_over.append(None)
            await asyncio.gather(*tasks)

    asyncio.run(run())
