"""A store that is only read stays as it is: no new term, no lease, no ceiling of the clock.

And what is written afterwards still gets a timestamp above everything that was read before, in this
life and in earlier ones, whatever the wall clock says.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import postroom
import postroom.aio
from postroom.cli.application import app
from postroom.kv import keys
from postroom.raft.interface import NoPeers
from postroom.raft.stored_log import HardState
from postroom.ranges import lease as leases
from postroom.server.assembly import NodeOptions
from postroom.server.node import Node
from postroom.server.opening import open_storage
from tests.client.stores import Store
from tests.client.watched_engine import dump

READING_COMMANDS = (
    ("status",), ("get", "a"), ("get", "nothing"), ("scan",), ("peek", "q"), ("inboxes",),
    ("dead-letters",),
)  # fmt: skip


def fill(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.put(b"a", b"1")
        tx.put(b"b", b"1")
        tx.enqueue_message(b"q", b"m")
        tx.enqueue_message(b"q", b"later", deliver_at=3600)
        tx.enqueue_update(postroom.Accounting(b"x", {"n": 1}))
        tx.enqueue_update(postroom.Increment(b"a"))
    db.drain()


def read_everything(db: postroom.Database) -> None:
    before = db.now()
    assert db.get(b"a") == db.get(b"a", at=before) == b"1"
    assert db.get_many([b"a", b"nothing"]) == [b"1", None]
    assert [key for key, _ in db.scan()] == [b"a", b"b"]
    assert [key for key, _ in db.scan(reverse=True, at=before)] == [b"b", b"a"]
    assert len(db.peek(b"q")) == len(db.peek(b"q", at=before)) == 1
    assert [each.key for each in db.inboxes()] == [b"q"]
    assert len(db.dead_letters()) == 1
    assert db.accounting(b"x") == {"n": 1}
    with db.snapshot() as snapshot:
        assert snapshot.get(b"a") == b"1"
        assert len(snapshot.peek(b"q")) == 1
        assert len(list(snapshot.scan(b"", None))) == 2
    with db.begin() as tx:
        assert tx.get(b"a") == b"1"
        assert len(list(tx.scan())) == 2
        assert len(tx.peek(b"q")) == 1
    assert tx.commit_timestamp is not None
    db.drain()
    assert db.now() >= before


def stored(path: Path) -> dict[bytes, bytes]:
    storage = open_storage(path, Random(1))
    try:
        hard = keys.raft_log_prefix(1) + b"h"
        return dump(storage) | {hard: storage.get(hard) or b""}
    finally:
        storage.close()


def told(content: dict[bytes, bytes]) -> tuple[int, int]:
    """Return the term, and the number of the lease."""
    hard = msgspec.msgpack.decode(content[keys.raft_log_prefix(1) + b"h"], type=HardState)
    lease = leases.decode(content[keys.record_key(1, leases.LEASE_RECORD)])
    return hard.term, lease.sequence


def test_reading_commands_leave_the_store_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with postroom.open(path) as db:
        fill(db)
    before = stored(path)
    for _ in range(3):
        for command, *arguments in READING_COMMANDS:
            result = CliRunner().invoke(app, [command, "--path", str(path), *arguments])
            assert result.exit_code == (arguments == ["nothing"]), result.output
            assert stored(path) == before, command
    assert told(before) == (1, 1)


def test_reading_calls_leave_the_store_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with postroom.open(path) as db:
        fill(db)
    before = stored(path)
    for _ in range(3):
        with postroom.open(path) as db:
            assert db.status().term == 1
            read_everything(db)
        assert stored(path) == before

    async def body() -> None:
        async with await postroom.aio.open(path) as db:
            tx = db.begin()
            values = await asyncio.gather(tx.get(b"a"), tx.get_many([b"b"]), tx.peek(b"q"))
            assert values[0] == b"1"
            await tx.commit()
            assert [pair async for pair in db.scan(b"a", b"b")] == [(b"a", b"1")]

    asyncio.run(body())
    assert stored(path) == before


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(rests_alone=True)
    yield store
    store.db.close()


@pytest.mark.parametrize("end", [Store.restart, Store.kill])
def test_a_store_that_crashed_rests_without_writing(
    store: Store, end: Callable[[Store], Any]
) -> None:
    fill(store.db)
    for _ in range(3):
        end(store)
        before = store.dump()
        assert store.node.root.replica.rests
        read_everything(store.db)
        store.advance(1000)
        assert store.dump() == before
        assert store.engine.writes == 0


def test_reading_for_hours_needs_no_turn(store: Store) -> None:
    store.db.put(b"a", b"1")
    store.restart()
    assert store.node.next_deadline() is None


@pytest.mark.parametrize("end", [Store.restart, Store.kill])
def test_a_write_after_resting_is_above_all_read_timestamps(
    store: Store, end: Callable[[Store], Any]
) -> None:
    """A life that wrote nothing while the wall clock was an hour ahead may be between them."""
    store.db.put(b"a", b"1")
    end(store)
    store.clock.epoch_milliseconds += 3_600_000
    tx, moment = store.db.begin(), store.db.now()
    assert tx.get(b"a") == b"1"
    assert tx.read_timestamp is not None
    read_at = max(tx.read_timestamp, moment, store.db.begin().commit())
    tx.rollback()
    end(store)
    store.clock.epoch_milliseconds -= 7_200_000
    assert store.db.get(b"a", at=read_at) == b"1"
    with store.db.begin() as tx:
        tx.put(b"a", b"2")
    assert tx.commit_timestamp is not None
    assert tx.commit_timestamp > read_at
    assert (store.db.get(b"a", at=read_at), store.db.get(b"a")) == (b"1", b"2")
    assert next(store.db.watch(b"a", after=read_at)).value == b"2"


def test_the_first_write_ends_the_rest(store: Store) -> None:
    store.db.put(b"a", b"1")
    lease = store.node.root.replica.lease
    store.restart(after_seconds=100)
    tx = store.db.begin()
    assert tx.get(b"a") == b"1"
    assert store.node.root.replica.rests
    tx.put(b"a", b"2")
    tx.commit()
    assert not store.node.root.replica.rests
    assert store.node.root.services.running
    assert store.node.root.replica.lease.sequence == lease.sequence
    assert store.node.root.replica.lease.expiration > lease.expiration
    assert store.db.increment(b"n") == 1


def test_a_transaction_that_began_at_rest_is_checked_like_any_other(store: Store) -> None:
    store.db.put(b"a", b"1")
    store.restart(after_seconds=100)
    first, second = store.db.begin(), store.db.begin()
    assert first.get(b"a") == second.get(b"a") == b"1"
    first.put(b"a", b"2")
    first.commit()
    second.put(b"b", b"2")
    with pytest.raises(postroom.errors.TransactionConflict):
        second.commit()


def test_a_watch_of_a_store_at_rest_sees_the_first_change(store: Store) -> None:
    store.db.put(b"a", b"1")
    store.restart()
    change = store.start(anext(store.core.watch(b"a")))  # type: ignore[arg-type]
    store.db.put(b"a", b"2")
    assert change.result().value == b"2"


def test_a_message_that_becomes_due_wakes_a_store_at_rest(store: Store) -> None:
    fill(store.db)
    store.restart()
    assert store.node.root.replica.rests
    store.advance(3500)
    assert store.node.root.replica.rests
    store.advance(101)
    assert not store.node.root.replica.rests
    assert [each.value for each in store.db.peek(b"q")] == [b"m", b"later"]


def test_a_message_that_fell_due_while_closed_comes_on_opening(store: Store) -> None:
    fill(store.db)
    store.restart(after_seconds=3601)
    store.db.drain()
    assert [each.value for each in store.db.peek(b"q")] == [b"m", b"later"]


def test_a_store_with_something_due_does_not_rest_at_all(store: Store) -> None:
    """Otherwise ``drain`` might be told that all is quiet before the services have begun."""
    fill(store.db)
    store.node.close()
    store.clock.seconds += 3601
    engine = store._open_engine()
    node = Node(engine, store.clock, Random(1), NoPeers(), NodeOptions(rests_alone=True))
    node.start()
    assert node.root.replica.serves
    assert not node.root.replica.rests
    node.close()
    store._start()


def test_garbage_is_collected_once_it_works_again(store: Store) -> None:
    store.db.put(b"a", b"1")
    store.db.put(b"a", b"2")
    store.restart(after_seconds=1000)
    before = store.db.now()
    store.advance(100)
    store.db.put(b"b", b"1")
    store.advance(100)
    with pytest.raises(postroom.errors.SnapshotTooOld):
        store.db.get(b"a", at=before - 1)


def test_a_node_of_a_cluster_does_not_rest() -> None:
    store = Store()
    store.db.put(b"a", b"1")
    store.restart()
    assert not store.node.root.replica.rests
    assert store.node.root.services.running
    store.db.close()


# --- several ranges


def test_garbage_of_a_range_that_rests_is_collected_while_another_one_works(store: Store) -> None:
    store.db.split(b"m")
    for _ in range(8):
        store.advance(20)  # it looks for garbage of before the split
    store.db.put(b"z", b"1")
    written_at = store.db.now()
    store.db.put(b"z", b"2")
    store.restart(after_seconds=1000)
    _, right = store.node.replicas.hosted.values()
    store.db.put(b"a", b"1")
    assert right.replica.rests
    for _ in range(8):
        store.advance(20)
    assert not right.replica.rests
    assert right.replica.protections.collected > written_at


SECONDS_MAX = 20.0
"""A time longer than any transaction takes, on whatever machine."""


def test_a_store_of_several_ranges_that_rests_commits_over_them(tmp_path: Path) -> None:
    with postroom.open(tmp_path) as db:
        db.split(b"m")

    async def commit() -> list[bytes | None]:
        async with await postroom.aio.open(tmp_path) as db:
            assert await db.get(b"z") is None
            async with asyncio.timeout(SECONDS_MAX), db.begin() as tx:
                tx.put(b"a", b"1")
                tx.put(b"z", b"1")
            return [await db.get(key) for key in (b"a", b"z")]

    assert asyncio.run(commit()) == [b"1", b"1"]


def test_a_store_that_rests_reads_what_a_killed_process_has_committed_in_another_range(
    tmp_path: Path,
) -> None:
    """The process is killed before the second range has heard of the commit."""
    killed = f"""
import os, postroom
from postroom.ranges.transactions.resolver import Resolver
db = postroom.open({str(tmp_path)!r})
db.split(b"m")
Resolver.step = lambda resolver: 60.0
with db.begin() as tx:
    tx.put(b"a", b"1")
    tx.put(b"z", b"1")
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", killed], check=True)

    async def read() -> bytes | None:
        async with await postroom.aio.open(tmp_path) as db, asyncio.timeout(SECONDS_MAX):
            found: bytes | None = await db.get(b"z")
            return found

    assert asyncio.run(read()) == b"1"
