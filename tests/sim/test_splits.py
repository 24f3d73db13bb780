"""A store that is split, and is broken off at every single write.

The scenario of :mod:`tests.sim.test_every_write`, for splits: at each write the power fails, or the
process dies, and the store is opened again. A split that was asked for takes place once, with all
that belongs to the keys of its right half.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import pytest

from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Retryable
from postroom.messaging.requests import Counters, ReadCounters
from postroom.ranges.listing import RangeInfo
from postroom.ranges.split.requests import AwaitSplit, NewRangeId, PrepareSplit
from postroom.server.assembly import NodeOptions
from postroom.server.hosted_range import HostedRange
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.turn import PowerFailure, ProcessDied

T = TypeVar("T")
OPTIONS: Final = NodeOptions(disk_reserve_bytes=0, poll_seconds=5.0, gc_interval_seconds=5.0)
PATIENCE_SECONDS: Final = 1000.0
LATER_SECONDS: Final = 30.0
KEYS: Final = (b"a", b"m", b"n", b"z")


async def again(db: CoreDatabase, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call, which is made until the store is there."""
    while True:
        try:
            return await call()
        except (Retryable, CommitUnknown):
            await db._sender.sleep(0.01)


async def split(db: CoreDatabase, key: bytes) -> RangeInfo:
    """Split at a key, whatever breaks meanwhile."""
    range_id = await again(db, lambda: db._sender.send(NewRangeId()))
    await again(db, lambda: db._sender.send(PrepareSplit(key, range_id)))
    made: RangeInfo = await again(db, lambda: db._sender.send(AwaitSplit(key)))
    assert (made.id, made.start) == (range_id, key)
    return made


def send(tx: Any) -> None:
    """Send two messages to an inbox of the right half."""
    tx.enqueue_message(b"n", b"first")
    tx.enqueue_message(b"n", b"second")


async def postpone(tx: Any) -> None:
    """Have the first message hold up its inbox."""
    tx.postpone(await tx.reap_queue(b"n", 1), LATER_SECONDS, "later", hold=True)


async def begin(db: CoreDatabase) -> None:
    """Write values, and postpone a message."""
    for key in KEYS:
        await db.run(lambda tx, key=key: tx.put(key, b"before"))
    await db.run(send)
    await db.run(postpone)


async def split_twice(db: CoreDatabase) -> None:
    """Split twice, and write between and after."""
    await split(db, b"m")
    for key in KEYS:
        await db.run(lambda tx, key=key: tx.put(key, b"between"))
    await split(db, b"n")
    for key in KEYS:
        await db.run(lambda tx, key=key: tx.put(key, b"after"))


def counters(hosted: HostedRange) -> Counters:
    """Return the counters of a range, as its leaseholder has them, checked."""
    found: Counters = hosted.replica.registry.reads[ReadCounters](None, None)
    assert found.conserved()
    return found


def run(store: EmbeddedStore) -> range:
    """Carry the scenario out; return the numbers of the writes that the splits take."""
    store.heals = True
    db = store.database()
    store.run(begin(db), seconds=PATIENCE_SECONDS)
    first = store.machine.disk.writes + 1
    store.run(split_twice(db), seconds=PATIENCE_SECONDS)
    last = store.machine.disk.writes
    store.let_pass(LATER_SECONDS + 10.0)  # each crash sets the clock a second ahead
    assert store.machine.node is not None
    hosted = store.machine.node.replicas.hosted
    assert len(hosted) == 3
    moved = {range_id: counters(each).received for range_id, each in hosted.items()}
    assert sorted(moved.values()) == [0, 1, 1], "the message went from range to range"
    assert not any(each.replica.listing.splitting() for each in hosted.values())
    for key in KEYS:
        assert store.retry(lambda key=key: db.get(key), db) == b"after"
    messages = store.retry(lambda: db.peek(b"n"), db)
    assert [message.value for message in messages] == [b"first", b"second"]
    return range(first, last + 1)


def test_a_split_store_has_everything_where_it_belongs() -> None:
    assert len(run(EmbeddedStore(1, OPTIONS, in_parts=False))) > 20


def crash_at(store: EmbeddedStore, numbers: list[int], *, power: bool) -> None:
    """Let the power fail, or the process die, before each of these writes."""

    def fail(number: int) -> None:
        if number in numbers:
            numbers.remove(number)
            raise PowerFailure if power else ProcessDied

    store.machine.disk.at_write = fail


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
def test_a_crash_before_every_write_of_a_split(power: bool) -> None:
    for number in run(EmbeddedStore(1, OPTIONS, in_parts=False)):
        store = EmbeddedStore(1, OPTIONS, in_parts=False)
        crash_at(store, [number], power=power)
        run(store)


@pytest.mark.parametrize("after", [1, 2])
def test_a_crash_at_every_write_of_a_split_and_another_one_during_recovery(after: int) -> None:
    for number in run(EmbeddedStore(1, OPTIONS, in_parts=False)):
        store = EmbeddedStore(1, OPTIONS, in_parts=False)
        crash_at(store, [number, number + after], power=True)
        run(store)
