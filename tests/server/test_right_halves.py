"""The right half of a split, with what came to its keys before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.stores import Store
from tests.server.splitting import counters, split


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.node.close()


def test_a_message_of_before_the_split_can_be_postponed(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"z", b"message")
    right = split(store, b"m")
    with store.db.begin() as tx:
        tx.postpone(tx.reap_queue(b"z"), 1.0, "not now")
    assert (counters(right).delivered, counters(right).pending_messages) == (-1, 1)
    store.advance(2.0)
    with store.db.begin() as tx:
        assert [each.value for each in tx.reap_queue(b"z")] == [b"message"]
    assert (counters(right).delivered, counters(right).reaped) == (0, 1)


def test_a_message_of_before_the_split_can_be_buried(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"z", b"message")
    right = split(store, b"m")
    with store.db.begin() as tx:
        tx.bury(tx.reap_queue(b"z"), "unreadable")
    assert (counters(right).delivered, counters(right).dead) == (-1, 1)
