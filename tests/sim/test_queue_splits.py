"""A store with a queue that is split, and is broken off at every single write.

At each write the power fails, or the process dies, and the store is opened again. Afterwards each
message is once in the range of its home, and what the division has left is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from postroom.client.database import CoreDatabase
from postroom.client.transaction import Transaction
from postroom.kv import keys
from postroom.messaging import images
from postroom.ranges.split.requests import CancelSplit, NewRangeId, PrepareSplit
from tests.messaging.queues.division import check_copies, divisible, held_back
from tests.sim.cluster.embedded import EmbeddedStore
from tests.sim.test_splits import OPTIONS, PATIENCE_SECONDS, again, crash_at, split

Q: Final = "emails"
IDS: Final = ("a", "b", "c", "n", "x", "z")
DONE: Final = {"b", "x"}
REST_SECONDS: Final = 30.0


@pytest.fixture(autouse=True)
def in_small_steps() -> Iterator[None]:
    with divisible(3):
        yield


async def begin(db: CoreDatabase) -> None:
    """Enqueue messages; some are done, and others are held for a while."""
    await db.create_queue(Q, ack_wait=5.0)

    def enqueue(tx: Transaction) -> None:
        for id_ in IDS:
            tx.enqueue(Q, b"", id=id_)

    await db.run(enqueue)
    found = await db.queue(Q).claim(5)
    await db.queue(Q).acknowledge([each for each in found if each.id in DONE])


def opened() -> tuple[EmbeddedStore, CoreDatabase]:
    """Return a store with a queue, and its client."""
    store = EmbeddedStore(1, OPTIONS, in_parts=False)
    store.heals = True
    db = store.database()
    store.run(begin(db), seconds=PATIENCE_SECONDS)
    return store, db


def check(store: EmbeddedStore, db: CoreDatabase, ranges: int) -> None:
    """Check that each message is there once, and nothing else."""
    store.let_pass(REST_SECONDS)
    node = store.machine.node
    assert node is not None
    assert len(node.replicas.hosted) == ranges
    for range_id, hosted in node.replicas.hosted.items():
        assert check_copies(node.engine, range_id) == 0
        for name in ("useless", "division", "right half"):
            assert node.engine.get(keys.record_key(range_id, name)) is None
        counting, bounds = images.Counting(node.engine.get), hosted.replica.bounds
        for span in (*images.spans_of_range(range_id), bounds.mail, bounds.data):
            for _, entry in images.walk(node.engine, span):
                if entry is not None:
                    counting.add(*entry)
        assert not counting.end().wrong
    queue = db.queue(Q)
    done = store.retry(lambda: queue.messages("done"), db)
    live = store.retry(queue.messages, db)
    assert {each.id for each in done} == DONE
    assert sorted(str(each.id) for each in live) == sorted({*IDS} - DONE)
    held = store.retry(lambda: queue.claim(10), db)
    held += store.retry(lambda: queue.claim(10), db)
    assert {each.id for each in held} == {*IDS} - DONE


def run(store: EmbeddedStore, db: CoreDatabase) -> range:
    """Split a store; return the numbers of the writes that it takes."""
    first = store.machine.disk.writes + 1
    store.run(split(db, b"m"), seconds=PATIENCE_SECONDS)
    store.let_pass(1.0)
    last = store.machine.disk.writes
    check(store, db, ranges=2)
    return range(first, last + 1)


def give_up(store: EmbeddedStore, db: CoreDatabase) -> range:
    """Prepare a split, and cancel it; return the numbers of the writes that it takes."""

    async def prepare() -> None:
        range_id = await again(db, lambda: db._sender.send(NewRangeId()))
        await again(db, lambda: db._sender.send(PrepareSplit(b"m", range_id)))

    first = store.machine.disk.writes + 1
    with held_back():
        store.run(prepare(), seconds=PATIENCE_SECONDS)
        store.let_pass(3.0)
        cancel = CancelSplit(b"m", "enough")
        store.run(again(db, lambda: db._sender.send(cancel)), seconds=PATIENCE_SECONDS)
        store.let_pass(1.0)
    last = store.machine.disk.writes
    check(store, db, ranges=1)
    return range(first, last + 1)


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
@pytest.mark.parametrize("scenario", [run, give_up])
def test_a_crash_before_every_write_of_the_split_of_a_queue(scenario: object, power: bool) -> None:
    assert callable(scenario)
    numbers = scenario(*opened())
    assert len(numbers) > 6
    for number in numbers:
        store, db = opened()
        crash_at(store, [number], power=power)
        scenario(store, db)
