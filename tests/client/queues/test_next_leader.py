"""Leases of clients that are gone, also under the next leader: others keep them."""

from __future__ import annotations

import pytest

import postroom
from postroom.server.cluster.sessions import SILENT_SECONDS
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


@pytest.mark.parametrize("in_transaction", [False, True])
def test_the_claims_of_a_client_that_is_gone_are_claimable_within_six_seconds(
    in_transaction: bool,
) -> None:
    store = Store(remote=True)
    driver = store.driver
    assert isinstance(driver, RemoteDriver)
    q = store.db.create_queue("q", ack_wait=600)
    with store.db.begin() as tx:
        tx.enqueue("q", b"")
    tx = store.db.begin()
    assert len(tx.claim("q") if in_transaction else q.claim()) == 1
    driver.cut = True
    store.advance(4.0)
    assert _is_leased(store)
    store.advance(2.0)
    assert not _is_leased(store)
    driver.cut = False
    store.db.close()


def _is_leased(store: Store) -> bool:
    """Return whether a message is leased, as the node knows: the client cannot ask it."""
    return store.node.replicas.clients_that_hold() != set()


def test_a_client_that_comes_back_in_time_keeps_its_leases() -> None:
    store = Store(remote=True)
    q, message = _claimed(store)
    store.restart()
    store.advance(10 * SILENT_SECONDS)
    message.acknowledge()
    assert (q.stats().acknowledged, q.stats().expired) == (1, 0)
    store.db.close()


def test_the_claims_of_a_vanished_client_go_back() -> None:
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
