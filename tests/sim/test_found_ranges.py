"""Faults that the simulator has found in stores with several ranges, each told in a few steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Retryable
from postroom.ranges.split.requests import NewRangeId, PrepareSplit
from postroom.server.assembly import NodeOptions
from tests.sim import store_rules
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.turn import ProcessDied

RESTING: Final = NodeOptions(disk_reserve_bytes=0, poll_seconds=5.0, rests_alone=True)
PATIENCE_SECONDS: Final = 30.0


def resting_store() -> tuple[EmbeddedStore, CoreDatabase]:
    """Return an embedded store, whose ranges rest when it is opened again."""
    store = EmbeddedStore(1, RESTING, in_parts=False)
    store.heals = True
    db = store.database()
    store.run(db.put(b"a", b"before"), "a put", PATIENCE_SECONDS)
    return store, db


def open_again(store: EmbeddedStore) -> None:
    """Close the store and open it again: all of its ranges rest."""
    store.machine.reopen()
    assert store.machine.node is not None
    assert all(each.replica.rests for each in store.machine.node.replicas.hosted.values())


def put_both(tx: Any) -> None:
    """Write in two ranges."""
    tx.put(b"a", b"1")
    tx.put(b"n", b"1")


def test_a_commit_over_two_ranges_ends_the_rest_of_its_first_range() -> None:
    store, db = resting_store()
    store.run(db.split(b"m"), "a split", PATIENCE_SECONDS)
    store.run(db.put(b"n", b"before"), "a put", PATIENCE_SECONDS)
    open_again(store)
    store.run(db.run(put_both), "a commit over two ranges", PATIENCE_SECONDS)
    assert store.run(db.get(b"n"), "a get", PATIENCE_SECONDS) == b"1"


def die_at_each_write(
    begin: Callable[[CoreDatabase], Any], check: Callable[[EmbeddedStore, CoreDatabase], None]
) -> int:
    """Let the process die before each write that ``begin`` leads to; return how many there are.

    The store is opened again, and nobody writes anything more before ``check``.
    """
    number = 0
    while True:
        number += 1
        store, db = resting_store()
        store.run(db.put(b"n", b"before"), "a put", PATIENCE_SECONDS)
        store.let_pass(1.0)
        fatal, died = store.machine.disk.writes + number, list[int]()

        def fail(write: int, fatal: int = fatal, died: list[int] = died) -> None:
            if write == fatal:
                died.append(write)
                raise ProcessDied

        store.machine.disk.at_write = fail
        with suppress(Retryable, CommitUnknown):
            store.run(begin(db), "it is begun", PATIENCE_SECONDS)
        store.let_pass(5.0)
        check(store, db)
        if not died:
            return number


def test_a_split_goes_on_in_a_store_that_is_opened_again_and_only_read() -> None:
    async def prepare(db: CoreDatabase) -> None:
        range_id = await db._sender.send(NewRangeId())
        await db._sender.send(PrepareSplit(b"m", range_id))

    def check(store: EmbeddedStore, _: CoreDatabase) -> None:
        assert store.machine.node is not None
        hosted = store.machine.node.replicas.hosted.values()
        assert not any(each.replica.listing.splitting() for each in hosted)

    assert die_at_each_write(prepare, check) > 4


def test_a_commit_over_two_ranges_ends_in_a_store_that_is_opened_again_and_only_read() -> None:
    async def commit(db: CoreDatabase) -> None:
        await db.split(b"m")
        async with db.begin() as tx:
            put_both(tx)

    def check(store: EmbeddedStore, db: CoreDatabase) -> None:
        found = [store.retry(lambda key=key: db.get(key), db) for key in (b"a", b"n")]
        assert found in ([b"1", b"1"], [b"before", b"before"])
        store.let_pass(5.0)
        store.write_gathered()
        for each in store_rules.contents_of(store.machine.disk.content):
            assert not each.prepared
            assert not each.unresolved

    assert die_at_each_write(commit, check) > 8
