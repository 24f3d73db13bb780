"""Restores beside others: who writes, reads, counts or gives up at the same time."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from postroom import integer, limits
from postroom.errors import CommitUnknown, SnapshotTooOld, TransactionConflict, Unavailable
from postroom.kv import keys
from postroom.messaging.ingest.requests import AbandonRestore, BeginRestore, CheckImage
from postroom.ranges.evaluation import MustWait, View
from tests.client.images import IMAGE, read, restore, shown
from tests.client.stores import Between, Store
from tests.client.test_images import RUN, empty_like, filled


def test_a_restore_can_be_abandoned_twice() -> None:
    store = filled(5)
    at, found = read(store.db)
    other = empty_like(store)
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    begun.send([name for name, _ in found], [stored for _, stored in found])
    begun.flush()
    # An answer may be lost, or somebody else may give it up meanwhile.
    Between(other, AbandonRestore, other.db.images.abandon)
    other.db.images.abandon()
    assert not shown(other)


def test_a_write_of_the_proposal_that_closed_the_store_outlives_abandoning() -> None:
    other = Store()
    opening = other.driver.send(BeginRestore(RUN, IMAGE, 1))
    put = other.start(other.core.put(b"a", b"1"))  # evaluated into the same proposal
    other.driver.settle()
    put.result()
    other.db.images.abandon()
    del opening
    assert other.db.get(b"a") == b"1"
    assert other.db.images.read().state == ""


@pytest.mark.parametrize("restarted", [False, True])
def test_a_transaction_that_read_before_a_restore_cannot_commit_after_it(
    restarted: bool,
) -> None:
    store = Store()
    store.db.put(b"n", b"1000")
    at, found = read(store.db)
    other = empty_like(store)
    other.advance(5)
    late, blind = other.db.begin(), other.db.begin()
    assert late.get(b"n") is None
    restore(other.db, at, found)
    if restarted:
        other.restart()
    late.put(b"n", b"1")
    with pytest.raises(TransactionConflict, match="restored"):
        late.commit()
    assert other.db.get(b"n") == b"1000"
    blind.put(b"other", b"1")
    blind.commit()
    with other.db.begin() as tx:
        assert tx.get(b"n") == b"1000"
        tx.put(b"n", b"1001")
    assert other.db.get(b"n") == b"1001"


def test_counting_may_take_longer_than_other_requests() -> None:
    store = Store(remote=True)
    store.db.put(b"a", b"1")
    reads, counted = store.node.root.replica.registry.reads, []
    check = reads[CheckImage]

    def slowly(view: View, request: CheckImage) -> Any:
        if not counted:
            raise MustWait("counting")
        return check(view, request)

    reads[CheckImage] = slowly
    counting = store.start(store.core.images.check())
    store.advance(600)
    assert not counting.done
    counted.append(True)
    store.node.root.replica.wake(["counting"])
    store.driver.settle()
    assert counting.result().tables == {"data": 1}
    counted.clear()
    counting = store.start(store.core.images.check())
    store.advance(limits.COUNTED_SECONDS_MAX + 60)
    with pytest.raises(Unavailable, match="counted"):
        counting.result()


def test_a_snapshot_or_a_watch_of_before_a_restore_ends_with_it() -> None:
    store = Store()
    store.db.put(b"a", b"1")
    at, found = read(store.db)
    other = empty_like(store)
    other.advance(5)
    with other.db.snapshot() as snapshot:
        assert snapshot.get(b"a") is None
        waiting = other.start(anext(other.core.watch(b"a")))
        restore(other.db, at, found)
        with pytest.raises(SnapshotTooOld, match="restored"):
            snapshot.get(b"a")
    with pytest.raises(SnapshotTooOld, match="restored"):
        waiting.result()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_position_of_before_a_restore_is_refused_after_it(restarted: bool) -> None:
    store = Store()
    store.db.put(b"a", b"1")
    at, found = read(store.db)
    other = empty_like(store)
    other.advance(5)
    position = other.db.now()
    restore(other.db, at, found)
    if restarted:
        other.restart()
    opened = other.db.now()
    for ask in (
        lambda: list(other.db.scan(at=position)),
        lambda: other.db.hold(position).__enter__(),
        lambda: next(other.db.watch(b"", b"z", after=position)),
        lambda: list(other.db.bulk.columns(after=position, at=opened, changes=True)),
        lambda: list(other.db.bulk.columns(at=position)),
    ):
        with pytest.raises(SnapshotTooOld, match="restored"):
            ask()
    (part,) = other.db.partitions()
    assert position < part.readable_from <= opened
    with other.db.hold(part.readable_from):  # a reader of all that there is begins so
        pass
    # The moment of the export is in the new store, and so is all from its opening on.
    assert list(other.db.scan(at=at)) == [(b"a", b"1")]
    other.db.put(b"a", b"2")
    for after in (at, opened):
        changes = other.db.watch(b"a", after=after)
        assert next(changes).value == b"2"
        changes.close()


def test_half_a_queue_that_is_being_restored_is_no_damaged_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    store.db.create_queue("emails")
    with store.db.begin() as tx:
        tx.enqueue("emails", b"later", deliver_at=datetime.timedelta(hours=1))
    at, found = read(store.db)
    other = empty_like(store)
    part = keys.RANGE + keys.QUEUES + keys.u32(1) + keys.SCHEDULED
    scheduled = [name for name, _ in found if name.startswith(part)]
    assert len(scheduled) == 1
    begun = other.db.images.begin(RUN, IMAGE, at)
    assert begun is not None
    some = [(name, stored) for name, stored in found if name not in scheduled]
    begun.send([name for name, _ in some], [stored for _, stored in some])
    begun.flush()
    other.restart()
    assert not [each for each in caplog.records if "set aside" in each.getMessage()]
    restore(other.db, at, found)
    assert other.db.queue("emails").stats().scheduled == 1


def test_a_queue_of_a_store_that_was_not_empty_after_all_is_there_under_the_next_leader() -> None:
    other = Store()
    opening = other.driver.send(BeginRestore(RUN, IMAGE, 1))
    made = other.start(other.core.create_queue("emails"))  # evaluated into the same proposal
    other.driver.settle()
    made.result()
    del opening
    other.restart()
    assert other.db.images.read().state == "opening"
    other.db.images.abandon()
    assert other.db.queue("emails").stats().enqueued == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_commit_that_may_be_in_the_image_is_not_made_again(restarted: bool) -> None:
    store = Store()
    with store.db.begin() as tx:
        first = tx.retry_id
        tx.increment(b"n", 1)
    with store.db.begin(retry_id=first) as tx:
        tx.increment(b"n", 1)
    at, found = read(store.db)
    other = empty_like(store)
    restore(other.db, at, found)
    if restarted:
        other.restart()
    with pytest.raises(CommitUnknown, match="may be in it"), other.db.begin(retry_id=first) as tx:
        tx.increment(b"n", 1)
    assert integer(other.db.get(b"n")) == 1
    with other.db.begin() as tx:
        tx.increment(b"n", 1)
    assert integer(other.db.get(b"n")) == 2
