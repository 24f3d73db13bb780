"""Leases under the next leader: who is there keeps them, others are waited for as long as ever."""

from __future__ import annotations

import pytest

import postroom
from postroom.server.cluster.client_timeouts import SILENT_SECONDS
from tests.client.hand_driver import RemoteDriver
from tests.client.stores import Store


def _claimed(store: Store) -> tuple[postroom.Queue, postroom.QueueMessage]:
    q = store.db.create_queue("q", ack_wait=600, min_backoff=0, max_backoff=1)
    with store.db.begin() as tx:
        tx.enqueue("q", b"", id="1")
    (message,) = q.claim(1)
    return q, message


def test_a_client_that_vanished_with_the_leader_loses_its_leases() -> None:
    store = Store(remote=True)
    driver = store.driver
    assert isinstance(driver, RemoteDriver)
    q, message = _claimed(store)
    driver.cut = True
    store.restart()
    driver.cut = True
    store.advance(SILENT_SECONDS + 3)
    driver.cut = False
    driver.settle()
    assert (q.stats().leased, q.stats().expired) == (0, 1)
    with pytest.raises(postroom.LeaseLost):
        message.acknowledge()
    (again,) = q.claim(1)
    assert again.last_error == "the consumer has gone"
    store.db.close()


def test_a_client_that_comes_back_in_time_keeps_its_leases() -> None:
    store = Store(remote=True)
    q, message = _claimed(store)
    store.restart()
    store.advance(10 * SILENT_SECONDS)
    message.acknowledge()
    assert (q.stats().acknowledged, q.stats().expired) == (1, 0)
    store.db.close()


def test_what_a_transaction_of_a_vanished_client_claimed_goes_back() -> None:
    store = Store(remote=True)
    driver = store.driver
    assert isinstance(driver, RemoteDriver)
    q, message = _claimed(store)
    message.reject(0)
    tx = store.db.begin()
    assert len(tx.claim("q")) == 1
    driver.cut = True
    store.restart()
    driver.cut = True
    store.advance(SILENT_SECONDS + 3)
    driver.cut = False
    driver.settle()
    assert (q.stats().leased, q.stats().expired) == (0, 1)
    store.db.close()
