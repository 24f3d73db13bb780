"""Messages and deferred updates: order, due times, exactly once, dead letters, conservation."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import postroom
import postroom.aio
from postroom.client import pages
from postroom.errors import TransactionConflict
from postroom.kv import keys
from postroom.limits import METRIC_BYTES_MAX, METRICS_MAX, VALUE_BYTES_MAX
from postroom.messaging.requests import ListDeadLetters, Peek
from postroom.protocol.frames import FRAME_BYTES_MAX
from tests.client.stores import Between, Store

BIG = 2**63 - 1


def send(db: postroom.Database, key: bytes, *values: bytes, **options: Any) -> None:
    with db.begin() as tx:
        for value in values:
            tx.enqueue_message(key, value, **options)


def update(db: postroom.Database, *requests: Any, **options: Any) -> None:
    with db.begin() as tx:
        for request in requests:
            tx.enqueue_update(request, **options)


def waiting(db: postroom.Database, key: bytes) -> list[bytes]:
    return [message.value for message in db.peek(key, 10_000)]


def reap(db: postroom.Database, key: bytes, *args: Any, **options: Any) -> list[bytes]:
    with db.begin() as tx:
        return [message.value for message in tx.reap_queue(key, *args, **options)]


# --- a message


def test_a_message_tells_where_it_comes_from(db: postroom.Database) -> None:
    with db.begin() as tx:
        tx.enqueue_message(b"k", b"v", headers={"kind": "greeting"})
        tx.enqueue_message(b"k", b"w")
    db.drain()
    first, second = db.peek(b"k")
    assert (first.key, first.value, first.headers) == (b"k", b"v", {"kind": "greeting"})
    assert second.headers == {}
    assert first.sent_at == second.sent_at == tx.commit_timestamp
    assert first.delivered_at > first.sent_at
    assert first.sender_range == second.sender_range == 1
    assert first.id != second.id


def test_headers_are_text_to_simple_values(db: postroom.Database) -> None:
    headers = {
        "text": "é",
        "bytes": b"\x00",
        "whole": -(2**63),
        "real": 1.5,
        "yes": True,
        "no": None,
    }
    send(db, b"k", b"v", headers=headers)
    assert db.peek(b"k")[0].headers == headers
    with db.begin() as tx:
        assert tx.reap_queue(b"k")[0].headers == headers


def test_a_recipient_need_not_exist(db: postroom.Database) -> None:
    send(db, b"nobody", b"m")
    assert db.get(b"nobody") is None
    assert waiting(db, b"nobody") == [b"m"]
    assert list(db.scan()) == []


def test_deleting_a_key_leaves_its_inbox(db: postroom.Database) -> None:
    db.put(b"k", b"1")
    send(db, b"k", b"m")
    db.delete(b"k")
    db.delete_range(b"", None)
    assert waiting(db, b"k") == [b"m"]


# --- order


def test_an_inbox_is_in_the_order_of_commits(store: Store) -> None:
    first, second = store.db.begin(), store.db.begin()
    first.enqueue_message(b"k", b"begun first")
    second.enqueue_message(b"k", b"begun second")
    second.enqueue_message(b"k", b"begun second, too")
    second.commit()
    first.commit()
    assert waiting(store.db, b"k") == [b"begun second", b"begun second, too", b"begun first"]
    assert reap(store.db, b"k") == [b"begun second", b"begun second, too", b"begun first"]


def test_a_delayed_message_takes_the_place_of_its_commit(store: Store) -> None:
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"2", deliver_at=10)
    send(store.db, b"k", b"3")
    assert waiting(store.db, b"k") == [b"1", b"3"]
    store.advance(10.1)
    assert waiting(store.db, b"k") == [b"1", b"2", b"3"]
    assert reap(store.db, b"k") == [b"1", b"2", b"3"]


def test_a_delayed_message_arrives_below_what_others_hold(store: Store) -> None:
    send(store.db, b"k", b"early", deliver_at=10)
    send(store.db, b"k", b"1", b"2")
    holder = store.db.begin()
    assert len(holder.reap_queue(b"k")) == 2
    store.advance(10.1)
    assert reap(store.db, b"k") == [b"early"]
    holder.commit()
    assert waiting(store.db, b"k") == []


def test_more_messages_than_are_delivered_at_once_keep_their_order(store: Store) -> None:
    values = [b"%04d" % number for number in range(2000)]
    store.start(_sending(store, values[:1500]))
    for value in values[1500:]:
        store.start(_sending(store, [value]))
    store.db.drain()
    assert waiting(store.db, b"k") == values


async def _sending(store: Store, values: list[bytes]) -> None:
    async with store.core.begin() as tx:
        for value in values:
            tx.enqueue_message(b"k", value)


def test_receipt_is_after_sending(store: Store) -> None:
    for _ in range(10):
        send(store.db, b"k", b"a", b"b")
    assert all(message.delivered_at > message.sent_at for message in store.db.peek(b"k"))


# --- due times


def _aware(seconds: float) -> datetime.datetime:
    start = datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)
    return start.astimezone(datetime.timezone(datetime.timedelta(hours=5))) + datetime.timedelta(
        seconds=seconds
    )


DUE: dict[str, Any] = {
    "seconds": 2,
    "float": 2.0,
    "timedelta": datetime.timedelta(seconds=2),
    "datetime": _aware(2),
}


@pytest.mark.parametrize("due", DUE)
def test_nothing_is_done_before_it_is_due(store: Store, due: str) -> None:
    send(store.db, b"k", b"m", deliver_at=DUE[due])
    update(store.db, postroom.Increment(b"n"), execute_at=DUE[due])
    store.advance(1.9)
    assert waiting(store.db, b"k") == []
    assert store.db.get(b"n") is None
    assert store.counters().pending == 2
    store.db.drain(0)
    store.advance(0.15)
    assert waiting(store.db, b"k") == [b"m"]
    assert postroom.integer(store.db.get(b"n")) == 1
    assert store.counters().pending == 0


@pytest.mark.parametrize("due", [0, -5, datetime.timedelta(days=-1), _aware(-1000)])
def test_what_is_due_in_the_past_is_done_at_once(store: Store, due: Any) -> None:
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"2", deliver_at=due)
    update(store.db, postroom.Increment(b"n"), execute_at=due)
    assert waiting(store.db, b"k") == [b"1", b"2"]
    assert postroom.integer(store.db.get(b"n")) == 1


def test_a_due_time_survives_a_restart(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=100)
    update(store.db, postroom.Put(b"a", b"1"), execute_at=100)
    store.kill()
    store.advance(99)
    assert (waiting(store.db, b"k"), store.db.get(b"a")) == ([], None)
    store.advance(1.1)
    assert (waiting(store.db, b"k"), store.db.get(b"a")) == ([b"m"], b"1")


def test_what_fell_due_while_the_store_was_closed_is_done_on_opening(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=10)
    update(store.db, postroom.Put(b"a", b"1"), execute_at=10)
    store.restart(after_seconds=100)
    store.db.drain()
    assert (waiting(store.db, b"k"), store.db.get(b"a")) == ([b"m"], b"1")


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


def test_what_is_reaped_without_a_limit_can_be_committed(store: Store) -> None:
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


def test_what_arrives_meanwhile_conflicts_with_no_reap(store: Store) -> None:
    send(store.db, b"k", b"1")
    with store.db.begin() as tx:
        tx.reap_queue(b"k")
        send(store.db, b"k", b"2")
    assert waiting(store.db, b"k") == [b"2"]


@pytest.mark.parametrize("ending", ["rollback", "conflict", "expiry", "forgotten"])
def test_what_was_not_reaped_after_all_is_free_again(store: Store, ending: str) -> None:
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


# --- peeking, who has mail


def test_peek_consumes_nothing_and_is_limited(db: postroom.Database) -> None:
    send(db, b"k", *(b"%d" % number for number in range(5)))
    assert [message.value for message in db.peek(b"k", 2)] == [b"0", b"1"]
    assert waiting(db, b"k") == [b"0", b"1", b"2", b"3", b"4"]
    assert db.peek(b"absent") == []


def test_peek_at_a_past_timestamp_sees_what_was_reaped_since(store: Store) -> None:
    db = store.db
    moments = [db.now()]
    send(db, b"k", b"1", b"2")
    moments.append(db.now())
    assert reap(db, b"k", 1) == [b"1"]
    moments.append(db.now())
    send(db, b"k", b"3")
    assert reap(db, b"k") == [b"2", b"3"]
    moments.append(db.now())
    seen = [[message.value for message in db.peek(b"k", at=at)] for at in moments]
    assert seen == [[], [b"1", b"2"], [b"2"], []]
    assert [message.value for message in db.peek(b"k", 1, at=moments[1])] == [b"1"]


def test_peek_at_a_past_timestamp_does_not_see_what_was_still_to_come(store: Store) -> None:
    send(store.db, b"k", b"delayed", deliver_at=5)
    send(store.db, b"k", b"1")
    before = store.db.now()
    store.advance(6)
    assert [message.value for message in store.db.peek(b"k", at=before)] == [b"1"]
    assert waiting(store.db, b"k") == [b"delayed", b"1"]


def test_peek_tells_more_than_an_answer_can_hold(store: Store) -> None:
    sent = 0
    while sent * VALUE_BYTES_MAX <= FRAME_BYTES_MAX:
        send(store.db, b"k", *(bytes(VALUE_BYTES_MAX - 10) for _ in range(11)))
        sent += 11
    before = store.db.now()
    assert len(store.db.peek(b"k")) == len(store.db.peek(b"k", at=before)) == sent


@pytest.mark.parametrize("past", [False, True])
def test_peek_is_of_one_view_however_many_pages_it_takes(
    store: Store, monkeypatch: pytest.MonkeyPatch, past: bool
) -> None:
    monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", 50)
    values = [b"%d" % number for number in range(10)]
    send(store.db, b"k", b"delayed", deliver_at=100)
    send(store.db, b"k", *values)
    at = store.db.now() if past else None

    def meanwhile() -> None:
        assert reap(store.db, b"k", 7) == values[:7]
        send(store.db, b"k", b"new")
        store.advance(200)  # what was reaped is collected by then, unless it is protected

    for limit in (9, 10, 100):
        between = Between(store, Peek, lambda: None)
        assert [message.value for message in store.db.peek(b"k", limit, at=at)] == values[:limit]
        assert between.times > 2
    Between(store, Peek, meanwhile)
    assert [message.value for message in store.db.peek(b"k", at=at)] == values
    assert waiting(store.db, b"k") == [b"delayed", b"7", b"8", b"9", b"new"]


def test_inboxes_tells_who_has_mail_the_oldest_first(db: postroom.Database) -> None:
    for key, values in ((b"c", 1), (b"a", 2), (b"d/1", 1), (b"b", 3)):
        send(db, key, *(b"m" for _ in range(values)))
    db.put(b"a0", b"no mail")
    found = db.inboxes()
    assert [(each.key, each.messages) for each in found] == [
        (b"c", 1), (b"a", 2), (b"d/1", 1), (b"b", 3),
    ]  # fmt: skip
    assert [each.oldest for each in found] == [db.peek(each.key)[0].sent_at for each in found]
    assert [each.key for each in db.inboxes(limit=2)] == [b"c", b"a"]
    assert [each.key for each in db.inboxes(b"b", b"d")] == [b"c", b"b"]
    assert [each.key for each in db.inboxes(*postroom.prefix(b"d/"))] == [b"d/1"]
    reap(db, b"c")
    reap(db, b"a", 1)
    assert [(each.key, each.messages) for each in db.inboxes()][:2] == [(b"a", 1), (b"d/1", 1)]


def test_inboxes_follows_the_oldest_message_that_is_left(store: Store) -> None:
    send(store.db, b"a", b"1")
    send(store.db, b"b", b"2")
    send(store.db, b"a", b"3")
    skipper = store.db.begin()
    skipper.reap_queue(b"a", 1)
    assert reap(store.db, b"a") == [b"3"]
    assert [each.key for each in store.db.inboxes()] == [b"a", b"b"]
    skipper.rollback()
    send(store.db, b"a", b"4")
    assert reap(store.db, b"a", 1) == [b"1"]
    assert [each.key for each in store.db.inboxes()] == [b"b", b"a"]


# --- deferred updates


def test_each_kind_of_update_is_carried_out(db: postroom.Database) -> None:
    for name in (b"delete", b"range/1", b"range/2"):
        db.put(name, b"1")
    update(
        db,
        postroom.Put(b"put", b"2"),
        postroom.Increment(b"n", 3),
        postroom.Delete(b"delete"),
        postroom.DeleteRange(*postroom.prefix(b"range/")),
        postroom.Accounting(b"a/b", {"m": 1}),
    )
    db.drain()
    assert dict(db.scan()) == {b"put": b"2", b"n": (3).to_bytes(8, "big")}
    assert db.accounting(b"a") == {"m": 1}
    assert (db.status().executed, db.status().pending) == (5, 0)


def test_increments_of_one_key_are_added_up(store: Store) -> None:
    def many() -> None:
        update(store.db, *(postroom.Increment(b"n", 2) for _ in range(3000)))

    def one() -> None:
        update(store.db, postroom.Increment(b"n", 2))

    one()
    written = []
    for action in (one, many):
        before = store.engine.keys_written
        assert store.writes_of(action) == 1
        written.append(store.engine.keys_written - before)
    assert written[1] == written[0]
    assert postroom.integer(store.db.get(b"n")) == 6004
    assert store.counters().executed == 3002


def test_what_many_transactions_defer_is_added_up(store: Store) -> None:
    update(store.db, *(postroom.Increment(b"n") for _ in range(5000)), execute_at=5)
    update(store.db, *(postroom.Accounting(b"a/b", {"m": 1}) for _ in range(5000)), execute_at=5)
    heads: list[int] = []
    store.engine.before_write = lambda writes: heads.append(
        sum(key in (keys.head_key(b"n"), keys.accounting_key(b"a")) for key in writes)
    )
    store.advance(5.1)
    assert postroom.integer(store.db.get(b"n")) == 5000
    assert store.db.accounting(b"a") == store.db.accounting(b"a/b") == {"m": 5000}
    assert sum(heads) <= 6


@pytest.mark.parametrize("together", [True, False])
def test_the_order_of_requests_to_one_key_is_kept(store: Store, together: bool) -> None:
    five = (5).to_bytes(8, "big")
    requests = [
        postroom.Increment(b"n", 100),
        postroom.Put(b"n", five),
        postroom.Increment(b"n"),
        postroom.Increment(b"n"),
        postroom.Increment(b"m", 7),
        postroom.DeleteRange(b"m", b"n"),
        postroom.Increment(b"m"),
        postroom.Increment(b"o"),
        postroom.Delete(b"o"),
    ]
    for batch in [requests] if together else [[request] for request in requests]:
        update(store.db, *batch, execute_at=_aware(5))
    store.advance(5.1)
    numbers = {key: postroom.integer(value) for key, value in store.db.scan()}
    assert numbers == {b"n": 7, b"m": 1}


# --- dead letters


def test_what_can_never_succeed_becomes_a_dead_letter(db: postroom.Database) -> None:
    db.put(b"n", b"text")
    with db.begin() as tx:
        tx.put(b"source", b"1")
        tx.enqueue_update(postroom.Increment(b"n", 3))
        tx.enqueue_update(postroom.Increment(b"m", 3))
    db.drain()
    (letter,) = db.dead_letters()
    assert letter.reason.startswith("WrongType: b'n' holds 4 bytes")
    assert letter.request == postroom.Increment(b"n", 3)
    assert (letter.message, letter.source_key) == (None, b"source")
    assert letter.transaction_id == tx.id
    assert db.get_many([b"n", b"m"]) == [b"text", (3).to_bytes(8, "big")]
    assert (db.status().dead, db.status().executed, db.status().pending) == (1, 1, 0)


def test_only_those_that_must_die_of_a_sum_that_overflows(store: Store) -> None:
    store.db.increment(b"n", BIG - 3)
    update(store.db, *(postroom.Increment(b"n", by) for by in (1, 1, 5, 1, 1)))
    assert [letter.request.by for letter in store.db.dead_letters()] == [5, 1]
    assert store.dead_reasons() == ["Overflow", "Overflow"]
    assert postroom.integer(store.db.get(b"n")) == BIG
    assert (store.counters().executed, store.counters().dead) == (3, 2)


def test_only_those_that_must_die_of_an_accounting_that_overflows(store: Store) -> None:
    update(
        store.db,
        postroom.Accounting(b"a/b", {"m": BIG}),
        postroom.Accounting(b"a/c", {"m": 1, "other": 1}),
        postroom.Accounting(b"d", {"m": 1}),
    )
    assert store.dead_reasons() == ["Overflow"]
    assert store.db.accounting(b"a") == store.db.accounting(b"a/b") == {"m": BIG}
    assert store.db.accounting(b"a/c") == {}
    assert store.db.accounting(b"d") == {"m": 1}


def test_a_sum_is_judged_whole_not_by_its_steps(store: Store) -> None:
    store.db.increment(b"n", BIG)
    update(store.db, postroom.Increment(b"n", 1), postroom.Increment(b"n", -1))
    assert store.db.dead_letters() == []
    assert postroom.integer(store.db.get(b"n")) == BIG


def test_a_dead_letter_can_be_replayed_once_its_cause_is_gone(store: Store) -> None:
    store.db.put(b"n", b"text")
    update(store.db, postroom.Increment(b"n"), postroom.Increment(b"n"))
    first, second = store.db.dead_letters()
    assert store.db.replay([first.id]) == 1
    assert [letter.id for letter in store.db.dead_letters()] == [first.id, second.id]
    store.db.delete(b"n")
    assert store.db.replay(letter.id for letter in (first, second)) == 2
    store.db.drain()
    assert store.db.dead_letters() == []
    assert postroom.integer(store.db.get(b"n")) == 2
    counters = store.counters()
    assert (counters.executed, counters.dead, counters.pending) == (2, 0, 0)
    assert store.db.replay([first.id]) == 0


def test_a_discarded_dead_letter_is_gone_but_counted(db: postroom.Database) -> None:
    db.put(b"n", b"text")
    update(db, *(postroom.Increment(b"n") for _ in range(3)))
    letters = db.dead_letters()
    assert len(letters) == 3
    assert db.dead_letters(limit=2) == letters[:2]
    assert db.discard([letters[0].id, letters[2].id]) == 2
    assert db.discard([letters[0].id]) == 0
    assert db.dead_letters() == [letters[1]]
    status = db.status()
    assert (status.dead, status.dead_letters, status.enqueued) == (3, 1, 3)


def test_a_dead_letter_survives_a_restart(store: Store) -> None:
    store.db.put(b"n", b"text")
    update(store.db, postroom.Increment(b"n"))
    letters = store.db.dead_letters()
    store.kill()
    assert store.db.dead_letters() == letters


def test_dead_letters_tell_more_than_an_answer_can_hold(store: Store) -> None:
    update(store.db, postroom.Accounting(b"k", {"m": BIG}))
    names = {f"{number:03}" + "n" * (METRIC_BYTES_MAX - 3): 1 for number in range(METRICS_MAX - 1)}
    letters_min = FRAME_BYTES_MAX // (METRIC_BYTES_MAX * len(names)) + 1
    for _ in range(0, letters_min, 100):
        update(store.db, *[postroom.Accounting(b"k", {"m": 1, **names})] * 100)
    store.db.drain()
    letters = store.db.dead_letters(limit=10_000)
    told = sum(len(name) for letter in letters for name in letter.request.deltas)
    assert told > FRAME_BYTES_MAX
    assert len(letters) >= letters_min


def test_dead_letters_that_come_and_go_between_pages_hide_no_other_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LIST_BYTES_PER_PAGE", 150)
    store.db.put(b"n", b"text")
    update(store.db, *(postroom.Increment(b"n", by) for by in range(10)))
    letters = store.db.dead_letters()
    assert [letter.request.by for letter in letters] == list(range(10))
    assert store.db.dead_letters(limit=7) == letters[:7]

    def meanwhile() -> None:
        store.db.discard([letters[0].id, letters[9].id])
        store.db.replay([letters[1].id])
        update(store.db, postroom.Increment(b"n", 10))

    between = Between(store, ListDeadLetters, meanwhile)
    assert [letter.request.by for letter in store.db.dead_letters()][:9] == list(range(9))
    assert between.times > 2
    assert [letter.request.by for letter in store.db.dead_letters()] == [*range(1, 9), 10]


# --- conservation


def test_nothing_is_lost_at_any_step(store: Store) -> None:
    db = store.db
    db.put(b"text", b"text")
    steps: list[tuple[Callable[[], Any], tuple[int, int, int, int, int]]] = [
        (lambda: send(db, b"k", b"1", b"2", b"3"), (3, 3, 0, 0, 0)),
        (lambda: send(db, b"k", b"4", deliver_at=50), (4, 3, 0, 1, 0)),
        (lambda: update(db, postroom.Increment(b"n")), (5, 3, 1, 1, 0)),
        (lambda: update(db, postroom.Increment(b"n"), execute_at=50), (6, 3, 1, 2, 0)),
        (lambda: update(db, postroom.Increment(b"text")), (7, 3, 1, 2, 1)),
        (lambda: reap(db, b"k", 2), (7, 3, 1, 2, 1)),
        (lambda: db.replay(letter.id for letter in db.dead_letters()), (7, 3, 1, 2, 1)),
        (lambda: db.discard(letter.id for letter in db.dead_letters()), (7, 3, 1, 2, 1)),
        (store.kill, (7, 3, 1, 2, 1)),
        (lambda: store.advance(50.1), (7, 4, 2, 0, 1)),
        (store.restart, (7, 4, 2, 0, 1)),
    ]
    for action, expected in steps:
        action()
        now = store.counters()
        assert (now.enqueued, now.delivered, now.executed, now.pending, now.dead) == expected
    assert waiting(db, b"k") == [b"3", b"4"]
    assert store.counters().reaped == 2


def test_an_aborted_transaction_counts_nothing(store: Store) -> None:
    before = store.counters()
    tx = store.db.begin()
    tx.enqueue_message(b"k", b"m")
    tx.enqueue_update(postroom.Increment(b"n"))
    tx.rollback()
    tx = store.db.begin()
    tx.get(b"a")
    store.db.put(b"a", b"1")
    tx.enqueue_message(b"k", b"m")
    with pytest.raises(TransactionConflict):
        tx.commit()
    assert store.counters() == before


# --- draining


def test_drain_returns_at_once_if_nothing_is_due(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=3600)
    store.db.drain(0)
    assert store.clock.seconds == 0


def test_drain_waits_for_what_is_due(store: Store) -> None:
    update(store.db, *(postroom.Increment(b"n%d" % number) for number in range(9000)))
    store.db.drain()
    assert store.counters().executed == 9000


def test_drain_gives_up_after_its_time(store: Store) -> None:
    send(store.db, b"k", b"m", deliver_at=5)
    store.restart(after_seconds=10, services=False)
    with pytest.raises(TimeoutError, match="still due after 7 s"):
        store.db.drain(7)


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


# --- what a claim proves


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


def test_what_lies_between_what_was_reaped_is_first_then(store: Store) -> None:
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


def test_what_was_delayed_arrives_within_what_one_has_found(store: Store) -> None:
    send(store.db, b"k", b"1")
    send(store.db, b"k", b"late", deliver_at=10)
    send(store.db, b"k", b"2")
    tx = store.db.begin()
    assert len(tx.reap_queue(b"k")) == 2
    store.advance(10.1)
    tx.commit()
    assert waiting(store.db, b"k") == reap(store.db, b"k") == [b"late"]


def test_who_reaps_without_a_claim_takes_it_from_who_has_one(store: Store) -> None:
    """Its claim was given back before it commits, and another one has found the same since."""
    send(store.db, b"k", b"1", b"2")
    tx, other = store.db.begin(), store.db.begin()
    assert len(tx.reap_queue(b"k")) == 2
    store.node.replica.release_locks(tx.id)
    assert len(other.reap_queue(b"k")) == 2
    tx.commit()
    with pytest.raises(TransactionConflict):
        other.commit()
    assert waiting(store.db, b"k") == []


def test_the_same_in_one_proposal(store: Store) -> None:
    send(store.db, b"k", b"1", b"2", b"3")
    tx, other = store.core.begin(), store.core.begin()
    assert len(store.driver.run(tx.reap_queue(b"k", 2))) == 2
    store.node.replica.release_locks(tx.id)
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
