"""Consumers of lost messages: a new leaseholder knows no claims, and gives them away.

A message that was tried in between is refused. One that is as it was when it was handed out is
consumed, once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import postroom
from postroom import limits
from postroom.client.reaping import Reaping
from postroom.messaging.requests import ReapMessages
from tests.client.postponed import KEY, postpone, reap, send
from tests.client.stores import Store

TRIED = "tried by another consumer"


def lose(store: Store, most: int = 1) -> postroom.Transaction:
    """Return a transaction that has reaped messages, and lost them with its leaseholder."""
    tx = store.db.begin()
    tx.reap_queue(KEY, most)
    tx.put(b"done", b"by the late one")
    store.kill()
    return tx


def test_a_message_put_back_by_another_consumer_is_not_consumed(store: Store) -> None:
    send(store.db, b"m")
    late = lose(store)
    postpone(store.db, 1, 0, "not now")
    with pytest.raises(postroom.TransactionConflict, match=TRIED):
        late.commit()
    assert reap(store.db) == [(b"m", 1, "not now")]
    assert store.db.get(b"done") is None
    assert store.counters().reaped == 0


def test_a_late_consumer_that_knows_of_the_failure_consumes_the_message(store: Store) -> None:
    send(store.db, b"m", b"n")
    postpone(store.db, 2, 0, "not now")
    late = lose(store, 2)
    assert len(reap(store.db)) == 2  # they were given to somebody else, who has said nothing of it
    late.commit()
    assert reap(store.db) == []
    assert store.counters().reaped == 2


def test_one_of_many_is_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked at over several turns."""
    send(store.db, *[b"%d" % number for number in range(500)])
    late = lose(store, 500)
    postpone(store.db, 1, 0)
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 50)
    with pytest.raises(postroom.TransactionConflict, match=TRIED):
        late.commit()
    assert len(reap(store.db, max_results=1000)) == 500


def test_a_consumer_that_claims_a_lost_message_again_is_told(store: Store) -> None:
    """It claims again what it has lost: that does not make it unaware."""
    send(store.db, b"m", b"n")
    late = lose(store)
    postpone(store.db, 1, 0, "not now")
    with pytest.raises(postroom.TransactionConflict, match=TRIED):
        late.reap_queue(KEY, 5)
    late.rollback()
    assert [number for _, number, _ in reap(store.db)] == [1, 0]


def test_a_consumer_that_claims_a_lost_untried_message_again_consumes_it(store: Store) -> None:
    send(store.db, b"m", b"n")
    late = lose(store)
    assert [message.value for message in late.reap_queue(KEY, 5)] == [b"n"]
    late.commit()
    assert reap(store.db) == []


@pytest.mark.parametrize("end", [lambda tx: tx.rollback(), lambda tx: None])
def test_a_message_held_by_a_claim_is_consumed_without_a_look(
    store: Store, end: Callable[[postroom.Transaction], None]
) -> None:
    """Another transaction has failed with it before, and lets go, or vanishes meanwhile."""
    send(store.db, b"m", b"n")
    postpone(store.db, 1, 0, "not now")
    tx, other = store.db.begin(), store.db.begin(timeout=5)
    assert [message.attempts for message in tx.reap_queue(KEY, 1)] == [1]
    other.reap_queue(KEY, 1)
    end(other)
    store.advance(6)
    tx.commit()
    assert [value for value, _, _ in reap(store.db)] == [b"n"]


def test_clients_that_do_not_tell_are_served_as_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store.db, b"m")
    late = lose(store)
    postpone(store.db, 1, 0, "not now")
    sound = Reaping.requests
    monkeypatch.setattr(
        Reaping,
        "requests",
        lambda *given: [ReapMessages(each.key, each.ids) for each in sound(*given)],
    )
    late.commit()
    assert reap(store.db) == []


def test_a_consumer_that_knows_an_unreadable_message_consumes_it(store: Store) -> None:
    """Its commit tells the attempts of that one, and of those behind it."""
    send(store.db, b"\xc1", b"\x01", b"\x02")
    postpone(store.db, 2, 0, "not now")
    with store.with_codec("msgpack").begin() as tx:
        with pytest.raises(postroom.WrongType):
            tx.reap_queue(KEY, 2)
        tx.reap_queue(KEY, 1)  # by two claims, so that the commit looks at what is stored
    assert reap(store.db) == []


def test_a_new_holder_does_not_consume_a_message_put_back_by_the_first(
    store: Store,
) -> None:
    send(store.db, b"m")
    late = store.db.begin()
    late.postpone(late.reap_queue(KEY, 1), 0, "not now")
    store.kill()
    heir = store.db.begin()
    assert [message.attempts for message in heir.reap_queue(KEY, 1)] == [0]
    late.commit()
    with pytest.raises(postroom.TransactionConflict, match=TRIED):
        heir.commit()
    assert reap(store.db) == [(b"m", 1, "not now")]
