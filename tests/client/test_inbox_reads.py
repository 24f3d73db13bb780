"""The reads of inboxes by a transaction, and those that its commit checks.

:mod:`tests.serializable` shows that all of it comes to one order; here is which of it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import postroom
from postroom.client.reaping import LAST_LOOK_SECONDS
from postroom.errors import CommitUnknown, TransactionConflict, TransactionTooLarge
from postroom.kv.log_device import WriteFault
from postroom.limits import PEEKED_MESSAGES_MAX
from postroom.messaging.requests import CheckInbox
from postroom.ranges.requests import CommitTransaction
from tests.client.hand_driver import RemoteDriver
from tests.client.stores import Store


def send(db: postroom.Database, *values: bytes, to: bytes = b"q", **options: Any) -> None:
    with db.begin() as tx:
        for value in values:
            tx.enqueue_message(to, value, **options)


def values(found: Any) -> list[bytes]:
    return [each.value for each in found]


def commits(tx: postroom.Transaction) -> bool:
    tx.put(b"written", b"x")
    try:
        tx.commit()
    except TransactionConflict:
        return False
    return True


# --- an inbox that was found empty


def test_an_empty_inbox_is_a_read(db: postroom.Database) -> None:
    tx = db.begin()
    assert values(tx.reap_queue(b"q")) == []
    send(db, b"m")
    tx.put(b"written", b"x")
    with pytest.raises(TransactionConflict, match="the inbox of b'q' is not any more as"):
        tx.commit()
    assert db.get(b"written") is None


def test_an_inbox_that_is_empty_still_or_again_is_no_conflict(db: postroom.Database) -> None:
    tx = db.begin()
    tx.reap_queue(b"q")
    send(db, b"m")
    with db.begin() as other:
        other.reap_queue(b"q")
    send(db, b"m", to=b"another")
    assert commits(tx)


def test_messages_that_a_reap_did_not_return_are_no_read(db: postroom.Database) -> None:
    send(db, b"1", b"2")
    tx = db.begin()
    assert values(tx.reap_queue(b"q", 1)) == [b"1"]
    send(db, b"3")
    with db.begin() as other:
        assert values(other.reap_queue(b"q")) == [b"2", b"3"]
    assert commits(tx)


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_messages_held_by_others_are_no_read(db: postroom.Database, ending: str) -> None:
    send(db, b"m")
    holder, tx = db.begin(), db.begin()
    assert values(holder.reap_queue(b"q")) == [b"m"]
    assert values(tx.reap_queue(b"q")) == []
    getattr(holder, ending)()
    send(db, b"n")
    assert commits(tx)


def test_an_inbox_that_the_transaction_has_emptied_itself_is_found_empty(
    db: postroom.Database,
) -> None:
    for arrives in (False, True):
        send(db, b"1", b"2")
        tx = db.begin()
        while tx.reap_queue(b"q", 1):
            pass
        if arrives:
            send(db, b"3")
        assert commits(tx) is not arrives
    assert values(db.peek(b"q")) == [b"1", b"2", b"3"]


def test_a_message_that_came_after_all_is_in_conflict_with_having_found_none(
    db: postroom.Database,
) -> None:
    tx = db.begin()
    assert not tx.reap_queue(b"q")
    send(db, b"m")
    assert values(tx.reap_queue(b"q")) == [b"m"]
    assert not commits(tx)


def test_a_reap_that_waited_and_got_a_message_has_not_read_emptiness(store: Store) -> None:
    tx = store.core.begin()
    waits = store.start(tx.reap_queue(b"q", wait=30))
    send(store.db, b"m")
    send(store.db, b"n")
    assert values(waits.result()) == [b"m"]
    tx.put(b"written", b"x")
    store.driver.run(tx.commit())


def test_a_reap_that_gave_up_has_read_an_empty_inbox(store: Store) -> None:
    tx = store.db.begin()
    assert values(tx.reap_queue(b"q", wait=2)) == []
    send(store.db, b"m")
    assert not commits(tx)


def test_a_reap_that_gave_up_behind_other_holders_has_read_nothing(store: Store) -> None:
    send(store.db, b"m")
    holder, tx = store.db.begin(), store.db.begin()
    holder.reap_queue(b"q")
    assert values(tx.reap_queue(b"q", wait=2)) == []
    holder.rollback()
    assert commits(tx)


def test_a_reap_that_gave_up_while_cut_off_has_read_an_empty_inbox() -> None:
    store = Store(remote=True)
    tx = store.core.begin()
    store.driver.run(tx.get(b"a"))
    waits = store.start(tx.reap_queue(b"q", wait=2))
    assert isinstance(store.driver, RemoteDriver)
    store.driver.cut = True
    begun = store.clock.seconds
    while not waits.done:
        store.advance(0.1)
    assert store.clock.seconds - begun < 2 + LAST_LOOK_SECONDS + 0.2
    assert values(waits.result()) == []
    store.driver.cut = False
    send(store.db, b"m")
    tx.put(b"written", b"x")
    with pytest.raises(TransactionConflict):
        store.driver.run(tx.commit())
    store.db.close()


def test_a_message_in_the_same_proposal_is_seen(store: Store) -> None:
    """Both are evaluated together; what the first sends is delivered after the second."""
    sender, reader = store.core.begin(), store.core.begin()
    sender.enqueue_message(b"q", b"m")
    store.driver.run(reader.reap_queue(b"q"))
    reader.put(b"written", b"x")
    store.driver.later(sender.commit())
    committing = store.start(reader.commit())
    with pytest.raises(TransactionConflict):
        committing.result()


@pytest.fixture
def embedded() -> Iterator[Store]:
    store = Store()
    yield store
    store.db.close()


def test_a_message_that_is_due_in_the_outbox_is_seen(embedded: Store) -> None:
    store = embedded
    send(store.db, b"soon", deliver_at=5)
    store.restart(after_seconds=10, services=False)
    tx, other = store.db.begin(), store.db.begin()
    assert values(tx.reap_queue(b"q")) == values(other.reap_queue(b"r")) == []
    assert not commits(tx)
    assert commits(other)


def test_a_message_scheduled_for_later_is_not_in_the_inbox(store: Store) -> None:
    tx = store.db.begin()
    tx.reap_queue(b"q")
    send(store.db, b"later", deliver_at=60)
    assert commits(tx)


def test_too_much_that_is_due_counts_as_due_for_all(
    embedded: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.messaging.inbox_reads.DUE_LOOKED_AT_ONCE", 2)
    store = embedded
    send(store.db, b"1", b"2", b"3", to=b"r", deliver_at=5)
    store.restart(after_seconds=10, services=False)
    tx = store.db.begin()
    tx.reap_queue(b"q")
    assert not commits(tx)


def test_committing_again_is_answered_as_the_first_time(store: Store) -> None:
    """Though the transaction's own message fills the inbox that it found empty."""
    tx = store.db.begin()
    tx.reap_queue(b"q")
    tx.enqueue_message(b"q", b"mine")
    store.engine.fault = WriteFault.THERE_WHOLE
    with pytest.raises(CommitUnknown):
        tx.commit()
    store.kill()
    committed = tx.commit()
    assert [each.sent_at for each in store.db.peek(b"q")] == [committed]


def test_messages_are_given_once_though_the_claims_are_forgotten(store: Store) -> None:
    send(store.db, b"1", b"2")
    tx = store.db.begin()
    assert values(tx.reap_queue(b"q", 1)) == [b"1"]
    store.kill()
    assert values(tx.reap_queue(b"q")) == [b"2"]
    tx.commit()
    assert store.counters().reaped == 2


# --- a transaction that only reads


def commits_sent(store: Store, action: Callable[[], object]) -> int:
    sent: list[Any] = []
    send_, store.driver.send = (
        store.driver.send,
        lambda request, *rest: (  # type: ignore[method-assign]
            sent.append(request) or send_(request, *rest)  # type: ignore[func-returns-value]
        ),
    )
    action()
    store.driver.send = send_  # type: ignore[method-assign]
    return sum(type(each) is CommitTransaction for each in sent)


def test_an_empty_inbox_alone_needs_no_commit(store: Store) -> None:
    tx = store.db.begin()
    assert not tx.reap_queue(b"q")
    assert not tx.reap_queue(b"q")
    send(store.db, b"m")
    assert commits_sent(store, tx.commit) == 0


def test_peeks_and_keys_of_one_timestamp_need_no_commit(store: Store) -> None:
    send(store.db, b"m")
    tx = store.db.begin()
    tx.get(b"a")
    assert values(tx.peek(b"q")) == [b"m"]
    send(store.db, b"n")
    store.db.put(b"a", b"x")
    assert tx.get(b"a") is None
    assert values(tx.peek(b"q")) == [b"m"]
    assert commits_sent(store, tx.commit) == 0


def test_an_empty_inbox_beside_other_reads_is_checked(store: Store) -> None:
    """It leaves no trace, since there is nothing to remember."""
    tx = store.db.begin()
    tx.get(b"a")
    tx.reap_queue(b"q")
    writes = store.engine.writes
    assert commits_sent(store, tx.commit) == 1
    assert store.engine.writes == writes
    late = store.db.begin()
    late.get(b"a")
    with store.db.begin() as other:
        other.put(b"a", b"1")
        other.enqueue_message(b"q", b"1")
        other.enqueue_message(b"r", b"1")
    late.reap_queue(b"s")
    with pytest.raises(TransactionConflict):
        late.commit()


# --- peeking in a transaction


def test_a_peek_is_a_read(db: postroom.Database) -> None:
    send(db, b"1")
    arrives, reaped, same = db.begin(), db.begin(), db.begin()
    for tx in (arrives, reaped, same):
        assert values(tx.peek(b"q")) == [b"1"]
    assert commits(same)
    send(db, b"2")
    assert not commits(arrives)
    with db.begin() as other:
        other.reap_queue(b"q")
    assert not commits(reaped)


def test_messages_behind_a_peek_with_a_limit_are_no_read(db: postroom.Database) -> None:
    send(db, b"1", b"2", b"3")
    first, second = db.begin(), db.begin()
    assert values(first.peek(b"q", 1)) == [b"1"]
    assert values(second.peek(b"q", 2)) == [b"1", b"2"]
    send(db, b"4")
    with db.begin() as other:
        other.reap_queue(b"q", 1)
        other.rollback()
    assert commits(first)
    with db.begin() as other:
        other.reap_queue(b"q", 1)
    assert not commits(second)


def test_an_older_message_that_arrives_late_comes_before_what_was_peeked(store: Store) -> None:
    send(store.db, b"old", deliver_at=5)
    send(store.db, b"new", b"newer")
    tx = store.db.begin()
    assert values(tx.peek(b"q", 1)) == [b"new"]
    store.advance(6)
    assert values(store.db.peek(b"q", 1)) == [b"old"]
    assert not commits(tx)


def test_a_peek_is_as_of_the_first_read(db: postroom.Database) -> None:
    send(db, b"1")
    tx = db.begin()
    tx.get(b"a")
    with db.begin() as other:
        other.reap_queue(b"q")
    send(db, b"2")
    assert values(tx.peek(b"q")) == [b"1"]
    assert not commits(tx)


def test_a_peek_sees_what_others_hold_and_not_what_this_one_has_reaped_or_sends(
    db: postroom.Database,
) -> None:
    send(db, b"1", b"2", b"3")
    holder, tx = db.begin(), db.begin()
    assert values(holder.reap_queue(b"q", 1)) == [b"1"]
    assert values(tx.reap_queue(b"q", 1)) == [b"2"]
    tx.enqueue_message(b"q", b"4")
    assert values(tx.peek(b"q")) == [b"1", b"3"]
    assert values(tx.peek(b"q", 1)) == [b"1"]
    holder.rollback()
    assert commits(tx)
    assert values(db.peek(b"q")) == [b"1", b"3", b"4"]


def test_a_peek_of_many_pages_is_checked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroom.client.pages.LIST_BYTES_PER_PAGE", 100)
    send(store.db, *(b"%d" % number * 20 for number in range(9)))
    tx, late = store.db.begin(), store.db.begin()
    assert len(tx.peek(b"q")) == len(late.peek(b"q")) == 9
    assert commits(tx)
    send(store.db, b"m")
    assert not commits(late)


def test_a_transaction_peeks_no_more_than_its_commit_can_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store.db, *(bytes(900_000) for _ in range(8)))
    send(store.db, *(bytes(900_000) for _ in range(12)))
    tx = store.db.begin()
    with pytest.raises(TransactionTooLarge):
        tx.peek(b"q")
    tx.rollback()
    monkeypatch.setattr("postroom.client.buffer.PEEKED_MESSAGES_MAX", 3)
    tx = store.db.begin()
    with pytest.raises(TransactionTooLarge, match="more than 3 messages"):
        tx.peek(b"q", 4)
    assert len(store.db.peek(b"q", 15)) == 15


def test_requests_that_no_client_sends_are_harmless(store: Store) -> None:
    send(store.db, b"1", b"2")
    ids = tuple(bytes.fromhex(each.id) for each in store.db.peek(b"q"))
    for check, fits in (
        (CheckInbox(b"q", 2, ids), True),
        (CheckInbox(b"q", None, ids[1:]), False),
        (CheckInbox(b"q", None, ids[::-1]), False),
        (CheckInbox(b"q", 1, ids), False),
        (CheckInbox(b"q", 0, ids[:0]), False),
        (CheckInbox(b"nothing", None, ids), False),
        (CheckInbox(b"nothing", None, ()), True),
        (CheckInbox(b"q", 2, (*ids, ids[0])), False),
    ):
        tx = store.core.begin()
        request = CommitTransaction(tx.id, store.driver.reading(), 60.0, 0, b"q", [], [], [check])
        answer = store.start(_sent(store, request))
        if fits:
            answer.result()
        else:
            with pytest.raises(TransactionConflict):
                answer.result()
    assert len(ids) < PEEKED_MESSAGES_MAX


async def _sent(store: Store, request: Any) -> Any:
    return await store.driver.send(request)


def test_a_message_claimed_for_a_transaction_that_has_ended_is_free_again(store: Store) -> None:
    """The answer comes when nobody waits for it any more."""
    send(store.db, b"m")
    tx = store.core.begin()
    late = tx.reap_queue(b"q")
    store.driver.run(tx.rollback())
    running = store.start(late)
    with pytest.raises(postroom.errors.TransactionClosed):
        running.result()
    with store.db.begin() as other:
        assert values(other.reap_queue(b"q")) == [b"m"]
