"""Reaping: what is taken, by whom, how long it is waited for, and what it costs."""

from __future__ import annotations

import pytest

import postroom
import postroom.aio
from postroom.errors import TransactionConflict
from postroom.limits import VALUE_BYTES_MAX
from tests.client.mail import reap, send, waiting
from tests.client.stores import Store

# --- reaping


def test_reaping_takes_the_oldest_and_says_whether_there_is_more(db: postroom.Database) -> None:
    send(db, b"k", *(b"%d" % number for number in range(5)))
    with db.begin() as tx:
        taken = tx.reap_queue(b"k", 2)
        assert ([message.value for message in taken], taken.more) == ([b"0", b"1"], True)
        assert (len(taken), taken[1].value, taken[-1]) == (2, b"1", taken[1])
        assert [message.value for message in taken[:1]] == [b"0"]
        taken = tx.reap_queue(b"k", 3)
        assert ([message.value for message in taken], taken.more) == ([b"2", b"3", b"4"], False)
        taken = tx.reap_queue(b"k")
        assert (list(taken), taken.more, bool(taken)) == ([], False, False)
    assert waiting(db, b"k") == []


def test_reaping_more_than_there_is_takes_what_there_is(db: postroom.Database) -> None:
    send(db, b"k", b"1", b"2")
    assert reap(db, b"k", 2**62) == [b"1", b"2"]
    assert reap(db, b"k", 2**63) == []


def test_reaping_stops_at_a_number_of_bytes_but_takes_one_message(store: Store) -> None:
    send(store.db, b"k", *(bytes(1000) for _ in range(10)))
    with store.db.begin() as tx:
        for bytes_max, expected in ((1, 1), (1000, 1), (3500, 3), (10_000, 5)):
            taken = tx.reap_queue(b"k", max_bytes=bytes_max)
            assert (len(taken), taken.more) == (expected, expected < 5)


def test_a_reap_without_a_limit_can_be_committed(store: Store) -> None:
    for _ in range(2):
        send(store.db, b"k", *(bytes(VALUE_BYTES_MAX - 10) for _ in range(11)))
    reaped, more = 0, True
    while more:
        with store.db.begin() as tx:
            taken = tx.reap_queue(b"k")
        reaped, more = reaped + len(taken), taken.more
    assert reaped == store.counters().reaped == 22


def test_competing_reapers_get_different_messages(store: Store) -> None:
    send(store.db, b"k", *(b"%d" % number for number in range(6)))
    reapers = [store.db.begin() for _ in range(3)]
    taken = [reaper.reap_queue(b"k", 2) for reaper in reapers]
    assert [[message.value for message in each] for each in taken] == [
        [b"0", b"1"], [b"2", b"3"], [b"4", b"5"],
    ]  # fmt: skip
    assert [each.more for each in taken] == [True, True, False]
    for reaper in reversed(reapers):
        reaper.commit()
    assert waiting(store.db, b"k") == []
    assert store.counters().reaped == 6


def test_a_message_that_arrives_meanwhile_does_not_conflict_with_a_reap(store: Store) -> None:
    send(store.db, b"k", b"1")
    with store.db.begin() as tx:
        tx.reap_queue(b"k")
        send(store.db, b"k", b"2")
    assert waiting(store.db, b"k") == [b"2"]


@pytest.mark.parametrize("ending", ["rollback", "conflict", "expiry", "forgotten"])
def test_messages_of_a_failed_reap_are_free_again(store: Store, ending: str) -> None:
    send(store.db, b"k", b"1", b"2")
    tx = store.db.begin(timeout=5)
    tx.get(b"a")
    assert len(tx.reap_queue(b"k", 1)) == 1
    match ending:
        case "rollback":
            tx.rollback()
        case "conflict":
            store.db.put(b"a", b"new")
            with pytest.raises(TransactionConflict):
                tx.commit()
        case "expiry":
            store.advance(5.1)
            with pytest.raises(postroom.TransactionExpired):
                tx.commit()
        case "forgotten":
            store.advance(5.1)
    assert reap(store.db, b"k") == [b"1", b"2"]


def test_a_claim_that_a_restart_has_forgotten_is_checked_at_commit(store: Store) -> None:
    send(store.db, b"k", b"1")
    late = store.db.begin()
    late.reap_queue(b"k")
    late.put(b"a", b"late")
    store.kill()
    assert reap(store.db, b"k") == [b"1"]
    with pytest.raises(TransactionConflict, match="has reaped a message of b'k'"):
        late.commit()
    assert store.db.get(b"a") is None
    assert store.counters().reaped == 1


def test_waiting_for_a_message_ends_with_its_arrival(store: Store) -> None:
    tx = store.core.begin()
    waits = store.start(tx.reap_queue(b"k", wait=30))
    send(store.db, b"other", b"m")
    assert not waits.done
    send(store.db, b"k", b"m", deliver_at=3)
    store.advance(4)
    assert [message.value for message in waits.result()] == [b"m"]
    assert store.clock.seconds < 5


def test_waiting_for_a_message_ends_with_its_time(store: Store) -> None:
    for timeout, wait in ((60, 10), (10, 30), (60, 60), (60, 7200)):
        begun = store.clock.seconds
        tx = store.db.begin(timeout=timeout)
        taken = tx.reap_queue(b"k", wait=wait)
        assert (list(taken), taken.more) == ([], False)
        assert store.clock.seconds - begun == pytest.approx(wait, abs=0.01)


def test_a_message_that_becomes_free_ends_the_wait_for_one(store: Store) -> None:
    send(store.db, b"k", b"m")
    holder, tx = store.db.begin(), store.core.begin()
    holder.reap_queue(b"k")
    waits = store.start(tx.reap_queue(b"k", wait=30))
    assert not waits.done
    holder.rollback()
    assert [message.value for message in waits.result()] == [b"m"]


def test_a_message_that_was_forgotten_ends_the_wait_for_one(store: Store) -> None:
    send(store.db, b"k", b"m")
    store.db.begin(timeout=5).reap_queue(b"k")
    waits = store.start(store.core.begin().reap_queue(b"k", wait=30))
    store.advance(6)
    assert waits.done


def test_one_message_wakes_one_of_those_who_wait(store: Store) -> None:
    transactions = [store.core.begin() for _ in range(3)]
    waits = [store.start(tx.reap_queue(b"k", wait=30)) for tx in transactions]
    send(store.db, b"k", b"m")
    assert [each.done for each in waits] == [True, False, False]
    send(store.db, b"k", b"n", b"o")
    assert [each.done for each in waits] == [True, True, False]
    assert waits[1].result().more is False


# --- the cost of the millionth


def test_a_reap_costs_what_the_first_one_cost(store: Store) -> None:
    def round_of() -> tuple[int, int]:
        send(store.db, b"k", *(b"m" for _ in range(10)))
        store.engine.steps = store.engine.gets = 0
        reap(store.db, b"k", 10)
        return store.engine.steps, store.engine.gets

    first = round_of()
    assert {round_of() for _ in range(500)} == {first}
    store.kill()
    assert round_of() == first


def test_competing_reapers_do_not_step_over_each_other(store: Store) -> None:
    send(store.db, b"k", *(b"m" for _ in range(1000)))
    reapers = [store.db.begin() for _ in range(100)]
    store.engine.steps = 0
    for reaper in reapers:
        assert len(reaper.reap_queue(b"k", 10)) == 10
    assert store.engine.steps < 100 * 15


# --- proofs of a claim


def test_a_reap_after_a_commit_does_not_step_over_what_others_hold(store: Store) -> None:
    send(store.db, b"k", *(b"%d" % number for number in range(300)))
    held = [store.db.begin() for _ in range(200)]
    for tx in held:
        tx.reap_queue(b"k", 1)
    store.engine.steps = 0
    for tx in held[:10]:
        tx.commit()
        held.append(store.db.begin())
        held[-1].reap_queue(b"k", 1)
    assert store.engine.steps < 100
    for tx in held[10:]:
        tx.rollback()


def test_the_commit_does_not_read_again_what_the_reap_has_found(store: Store) -> None:
    send(store.db, b"k", *(b"%d" % number for number in range(60)))
    with store.db.snapshot() as before:
        tx = store.db.begin()
        assert len(tx.reap_queue(b"k", 50)) == 50
        steps = store.engine.steps
        tx.put(b"state", b"1")
        tx.commit()
        assert store.engine.steps - steps < 10
        assert waiting(store.db, b"k") == [b"%d" % number for number in range(50, 60)]
        assert len(before.peek(b"k", 100)) == 60


def test_messages_between_reaped_ones_are_the_first_afterwards(store: Store) -> None:
    """One holds the middle; another one reaps around it; what was delayed arrives in between."""
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"late", deliver_at=10)
    send(store.db, b"k", b"2", b"3", b"4")
    first, second = store.db.begin(), store.db.begin()
    assert len(first.reap_queue(b"k", 1)) == 1
    assert len(second.reap_queue(b"k", 2)) == 2
    first.rollback()
    third = store.db.begin()
    assert [message.value for message in third.reap_queue(b"k", 2)] == [b"1", b"4"]
    store.advance(10.1)
    third.commit()
    assert waiting(store.db, b"k") == [b"late", b"2", b"3"]
    second.commit()
    assert waiting(store.db, b"k") == reap(store.db, b"k") == [b"late"]


def test_a_delayed_message_may_arrive_between_found_ones(store: Store) -> None:
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"late", deliver_at=10)
    send(store.db, b"k", b"2")
    tx = store.db.begin()
    assert len(tx.reap_queue(b"k")) == 2
    store.advance(10.1)
    tx.commit()
    assert waiting(store.db, b"k") == reap(store.db, b"k") == [b"late"]


def test_a_commit_without_its_claim_takes_the_messages_from_their_holder(store: Store) -> None:
    """Its claim was given back before it commits, and another one has found the same since."""
    send(store.db, b"k", b"1", b"2")
    tx, other = store.db.begin(), store.db.begin()
    assert len(tx.reap_queue(b"k")) == 2
    store.node.root.replica.release_locks(tx.id)
    assert len(other.reap_queue(b"k")) == 2
    tx.commit()
    with pytest.raises(TransactionConflict):
        other.commit()
    assert waiting(store.db, b"k") == []


def test_the_same_in_one_proposal(store: Store) -> None:
    send(store.db, b"k", b"1", b"2", b"3")
    tx, other = store.core.begin(), store.core.begin()
    assert len(store.driver.run(tx.reap_queue(b"k", 2))) == 2
    store.node.root.replica.release_locks(tx.id)
    assert len(store.driver.run(other.reap_queue(b"k", 2))) == 2
    ended: list[str] = []

    async def commit(transaction: postroom.aio.Transaction) -> None:
        try:
            await transaction.commit()
        except TransactionConflict:
            ended.append("conflict")
        else:
            ended.append("committed")

    for each in (tx, other):
        store.driver.later(commit(each))
    store.driver.settle()
    assert ended == ["committed", "conflict"]
    assert waiting(store.db, b"k") == [b"3"]
