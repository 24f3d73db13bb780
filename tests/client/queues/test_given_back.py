"""Messages that were claimed and not worked on go back: at once, to their place, uncounted."""

from __future__ import annotations

import pytest

import postroom
from postroom.errors import Invalid, LeaseLost, TransactionConflict
from tests.client.queues.enqueueing import enqueue
from tests.client.stores import Store

WAIT_SECONDS = 30.0


def claimable(q: postroom.Queue) -> list[tuple[object, int]]:
    """Return the ids and the attempts of what is ready, and leave it claimed."""
    return [(each.id, each.epoch) for each in q.claim(10)]


def test_a_transaction_that_fails_by_a_conflict_gives_back_what_it_claimed(store: Store) -> None:
    q = store.db.create_queue("q")
    for each in "abc":
        enqueue(store, id=each)
    tx = store.db.begin()
    tx.get(b"k")
    (message,) = tx.claim("q", 1)
    store.db.put(b"k", b"other")
    tx.put(b"k", b"mine")
    with pytest.raises(TransactionConflict):
        tx.commit()
    assert message.id == "a"
    assert claimable(q) == [("a", 0), ("b", 0), ("c", 0)]


def test_a_transaction_that_is_rolled_back_gives_back_what_it_claimed(store: Store) -> None:
    q = store.db.create_queue("q", order="group")
    for each in "ab":
        enqueue(store, id=each, group="g")
    tx = store.db.begin()
    tx.claim("q", 1)
    tx.rollback()
    assert [each.id for each in q.claim(1, wait=5)] == ["a"]


def test_run_claims_the_same_message_again_after_each_conflict(store: Store) -> None:
    store.db.create_queue("q")
    enqueue(store, id="a")
    seen = []

    def work(tx: postroom.Transaction) -> None:
        tx.get(b"k")
        (message,) = tx.claim("q", 1, wait=5)
        seen.append((message.id, message.epoch))
        if len(seen) < 4:
            store.db.put(b"k", b"%d" % len(seen))
        tx.put(b"k", b"done")

    store.db.run(work)
    assert seen == [("a", 0)] * 4
    assert store.db.queue("q").stats().done == 1


def test_a_released_message_goes_to_its_old_place_and_no_attempt_is_counted(store: Store) -> None:
    q = store.db.create_queue("q")
    for each in "abc":
        enqueue(store, id=each)
    first, second, _ = q.claim(3)
    second.release()
    first.release()
    assert claimable(q) == [("a", 0), ("b", 0)]
    with pytest.raises(LeaseLost):
        first.release()
    (again,) = store.db.queue("q").messages("leased", limit=1)
    assert q.release([again]) == 1


def test_a_message_of_a_transaction_is_not_released_alone(store: Store) -> None:
    store.db.create_queue("q")
    enqueue(store, id="a")
    with store.db.begin() as tx:
        (message,) = tx.claim("q", 1)
        with pytest.raises(Invalid, match="claimed in a transaction"):
            message.release()
    assert store.db.queue("q").stats().done == 1


def test_a_queue_without_back_off_fires_a_rejected_message_at_once(store: Store) -> None:
    q = store.db.create_queue("q", max_backoff=0)
    enqueue(store, id="a")
    for epoch in range(3):
        (message,) = q.claim(1)
        assert message.epoch == epoch
        message.reject()


@pytest.mark.parametrize("how", ["tx", "acknowledge", "cancel", "reject"])
def test_a_consumer_has_credit_again_when_others_settle_its_message(how: str) -> None:
    with postroom.open(":memory:") as db:
        assert received_one_by_one(db, how) == ["a", "b", "c"]


def received_one_by_one(db: postroom.Database, how: str) -> list[object]:
    """Return the ids that a consumer with a credit of one gets, each settled by somebody else."""
    q = db.create_queue("q", ack_wait=600)  # a lease that passes gives credit as well
    with db.begin() as tx:
        for each in "abc":
            tx.enqueue("q", b"", id=each)
    seen: list[object] = []
    for message in q.receive(credit=1, timeout=WAIT_SECONDS):
        seen.append(message.id)
        if len(seen) == 3:
            break
        match how:
            case "tx":
                with db.begin() as tx:
                    tx.acknowledge("q", message.id)
            case "acknowledge":
                q.acknowledge(message.id)
            case "cancel":
                q.cancel(message.id)
            case "reject":
                q.reject(message.id, dead=True)
    return seen
