"""Deferred updates: what they do, what is added up, and dead letters."""

from __future__ import annotations

import pytest

import postroom
import postroom.aio
from postroom.client import pages
from postroom.kv import keys
from postroom.limits import FRAME_BYTES_MAX, METRIC_BYTES_MAX, METRICS_MAX
from postroom.messaging.requests import ListDeadLetters
from tests.client.mail import BIG, aware, update
from tests.client.stores import Between, Store

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


@pytest.mark.parametrize("count", [6000, 8190])
def test_increments_that_fill_a_turn_are_added_up_in_it(store: Store, count: int) -> None:
    """Increments that fill a turn are carried out with it.

    Stored for later, they would keep those of later turns from being carried out at once. A busy
    counter would be three times as slow.
    """
    update(store.db, postroom.Increment(b"n"))
    before = store.engine.keys_written
    assert store.writes_of(lambda: update(store.db, postroom.Increment(b"n"))) == 1
    of_one = store.engine.keys_written - before
    many = [postroom.Increment(b"n") for _ in range(count)]
    assert store.writes_of(lambda: update(store.db, *many)) == 1
    assert store.engine.keys_written - before == 2 * of_one
    assert postroom.integer(store.db.get(b"n")) == count + 2


def test_deferred_updates_of_many_transactions_are_added_up(store: Store) -> None:
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
        update(store.db, *batch, execute_at=aware(5))
    store.advance(5.1)
    numbers = {key: postroom.integer(value) for key, value in store.db.scan()}
    assert numbers == {b"n": 7, b"m": 1}


# --- dead letters


def test_an_update_that_can_never_succeed_becomes_a_dead_letter(db: postroom.Database) -> None:
    db.put(b"n", b"text")
    with db.begin() as tx:
        tx.put(b"source", b"1")
        tx.enqueue_update(postroom.Increment(b"n", 3))
        tx.enqueue_update(postroom.Increment(b"m", 3))
    db.drain()
    (letter,) = db.dead_letters()
    assert letter.reason.startswith("WrongType: b'n' contains 4 bytes")
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
