"""Names of messages and attempts that are right, whatever came again or was named twice."""

from __future__ import annotations

from typing import Any

import pytest

import postroom
from postroom.client.commits import commit_one
from postroom.messaging.queues.requests import Attempt, Reschedule
from tests.client.queues.enqueueing import enqueue
from tests.client.stores import Store

# --- an act of an earlier attempt is none of a later one, though that has the same epoch


def reused(store: Store, q: postroom.Queue) -> None:
    q.acknowledge("a")
    enqueue(store, b"new", id="a")


def replayed(store: Store, q: postroom.Queue) -> None:
    q.reject("a", dead=True)
    assert q.replay("a") == 1


def rescheduled(store: Store, q: postroom.Queue) -> None:
    store.advance(31)
    assert q.reschedule("a", epoch=0) == 1


def made_anew(store: Store, q: postroom.Queue) -> None:
    q.drop()
    store.db.create_queue("q", purge_after=0)
    enqueue(store, b"new", id="a")


@pytest.mark.parametrize("again", [reused, replayed, rescheduled, made_anew])
@pytest.mark.parametrize("alone", [True, False])
def test_a_late_attempt_changes_nothing(store: Store, again: Any, alone: bool) -> None:
    q = store.db.create_queue("q", purge_after=0)
    enqueue(store, id="a")
    (late,) = q.claim(1)
    again(store, q)
    if not alone:
        enqueue(store, id="b")
    message, *others = q.claim(2)
    assert (message.id, message.epoch) == (late.id, late.epoch)
    for change in (late.acknowledge, late.reject, lambda: late.extend(9)):
        with pytest.raises(postroom.LeaseLost, match="a later one holds it now"):
            change()
    for named in ([*others, late], [late, *others]):
        with pytest.raises(postroom.LeaseLost):
            q.acknowledge(named)
    message.extend(60)
    q.acknowledge([message, *others])
    assert q.stats().leased == 0


def test_a_message_that_is_looked_up_names_the_attempt_that_holds_it(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="a")
    enqueue(store, id="b")
    q.claim(2)[0].extend(60)
    for id_ in "ab":
        found = q.get(id_)
        assert found is not None
        found.acknowledge()
    assert q.stats().acknowledged == 2


# --- ids


def test_an_empty_kind_is_a_kind(store: Store) -> None:
    q = store.db.create_queue("q", purge_after=0)
    for call in (q.cancel, q.acknowledge):
        enqueue(store, id="a")
        enqueue(store, id="a", kind="k")
        assert call("a", kind="") == 1
        assert [each.kind for each in q.messages()] == ["k"]
        enqueue(store, id="a")
        assert call("a") == 2


@pytest.mark.parametrize("kind", [None, "k"])
def test_a_transaction_may_settle_by_id_what_it_has_claimed(store: Store, kind: str | None) -> None:
    q = store.db.create_queue("q", purge_after=0)
    for _ in range(3):
        enqueue(store, kind="k")
    enqueue(store, kind="k", id="left")
    with store.db.begin() as tx:
        one, two, three, _ = tx.claim("q", 4)
        tx.acknowledge("q", one.id, kind=kind)
        tx.reject("q", [two.id], 0, kind=kind)
        tx.cancel("q", [three.id], kind=kind)
    stats = q.stats()
    assert (stats.acknowledged, stats.rejected, stats.cancelled, stats.ready) == (2, 1, 1, 1)


# --- replaced


def test_a_message_that_was_only_rescheduled_is_replaced(store: Store) -> None:
    q = store.db.create_queue("q", on_duplicate="replace")
    enqueue(store, b"old", id="a", deliver_at=100)
    q.reschedule("a", deliver_at=200)
    assert enqueue(store, b"new", id="a", deliver_at=50).replaced
    store.advance(51)
    (message,) = q.claim(1)
    assert message.payload == b"new"
    message.reject(0)
    q.reschedule("a", epoch=0)
    assert not enqueue(store, b"newer", id="a").replaced
    q.claim(1)[0].acknowledge()


def test_a_message_that_leaves_its_group_lets_its_followers_go(store: Store) -> None:
    """They go as well if those replace the last messages of other groups."""
    q = store.db.create_queue("q", on_duplicate="replace")
    for number in range(3):
        enqueue(store, id=f"m{number}", group=f"g{number}", deliver_at=100)
        with store.db.begin() as tx:
            follower = postroom.Enqueue("q", b"done", id=f"m{number + 1}", group="end")
            tx.when_done("q", f"g{number}", follower)
    enqueue(store, b"done", id="m0", group="end")
    found = {each.id: (each.group, each.payload) for each in q.messages("ready")}
    assert found == {f"m{number}": ("end", b"done") for number in range(4)}


# --- credit


def test_a_message_that_is_held_for_longer_takes_credit_for_longer(store: Store) -> None:
    q = store.db.create_queue("q", ack_wait=30)
    enqueue(store)
    enqueue(store)
    consumer, run = q._core.consumer(credit=1), store.db.sender.run
    first = run(consumer.next(0))
    run(first.extend(3600))
    store.advance(60)
    assert run(consumer.next(0)) is None
    run(first.acknowledge())
    run(run(consumer.next(0)).acknowledge())


def test_a_queue_that_keeps_less_long_purges_sooner(store: Store) -> None:
    q = store.db.create_queue("q")
    enqueue(store, id="a")
    q.claim(1)[0].acknowledge()
    q.update(purge_after=10)
    store.advance(3600)
    assert q.stats().purged == 1


def test_an_epoch_at_its_limit_can_still_be_counted(store: Store) -> None:
    q = store.db.create_queue("q", ack_wait=10, max_backoff=1, max_attempts=None)
    enqueue(store, id="a")
    for epoch in (1_000_000_001, 2**64 - 1, 2**64):
        with pytest.raises(ValueError, match="epoch"):
            q.reschedule("a", epoch=epoch)
        with store.db.begin() as tx, pytest.raises(ValueError, match="epoch"):
            tx.reschedule("q", "a", epoch=epoch)
    # A client may send it all the same: a lease that runs out is counted then, too.
    request = Reschedule("q", [Attempt(b"a", "", b"a")], epoch=2**64 - 1)
    store.db.sender.run(commit_one(store.db.sender, b"a", request))
    q.claim(1)
    store.advance(20)
    (message,) = q.claim(1)
    assert message.epoch == 1_000_000_001
    assert not q.stats().failures
