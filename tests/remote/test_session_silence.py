"""Silent clients: a holder that falls silent has gone, and nobody touches what is another's."""

from __future__ import annotations

import pytest

from postroom.messaging.requests import AwaitQuiet, ReapQueue
from postroom.ranges.requests import (
    Get,
    GetForUpdate,
    Protect,
    Put,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
)
from postroom.server.cluster.admission import NodeLimits
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import client_id
from tests.remote.session_client import OWN, Client, commit, waiting


def lock(client: bytes = OWN, number: int = 1, key: bytes = b"lock") -> GetForUpdate:
    return GetForUpdate(key, 0, client + number.to_bytes(8, "big"), 60.0)


def reap(client: bytes = OWN, number: int = 1) -> ReapQueue:
    return ReapQueue(b"inbox", 10, 1000, client + number.to_bytes(8, "big"), 60.0)


def held(store: Store) -> tuple[int, int, int]:
    sizes = store.node.sizes()
    return sizes["locks"], sizes["claims"], sizes["protections"]


def with_mail(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m")


def test_a_silent_client_with_holdings_has_gone(store: Store) -> None:
    with_mail(store)
    client, other = Client(sessions := Sessions(store.node)), Client(sessions, b"somebody")
    client.ask(lock(), reap(), Protect())
    other.ask(lock(client_id(b"somebody")))
    store.advance(4.0)
    other.ask(first=2)
    assert held(store) == (1, 1, 1)
    store.advance(1.6)
    assert client.session.ended
    assert "nothing was heard" in client.read()[-1].failure[1]
    other.read()
    assert 1 in other.answers, "the lock is its own now"
    assert held(store) == (1, 0, 0)
    assert not other.session.ended


def test_a_client_with_signs_of_life_keeps_its_holdings(store: Store) -> None:
    with_mail(store)
    client = Client(Sessions(store.node))
    client.ask(lock(), reap(), Protect())
    for _ in range(20):
        store.advance(2.0)
        client.ask()
    assert held(store) == (1, 1, 1)
    assert not client.session.ended


def test_a_waiting_client_that_falls_silent_is_cut_off(store: Store) -> None:
    client = Client(sessions := Sessions(store.node))
    client.ask(ScanChanges(b"a", b"b", store.node.clock.reading()), AwaitQuiet())
    store.advance(5.6)
    assert client.session.ended
    assert (waiting(store), sessions.admission.requests, len(sessions)) == (0, 0, 0)


def test_a_client_without_waits_and_holdings_may_be_silent_for_longer(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(Get(b"k"))
    store.advance(29.0)
    assert not client.session.ended
    store.advance(2.0)
    assert client.session.ended


@pytest.mark.parametrize("seconds", [4.0, 6.0])
def test_a_client_that_comes_back_in_time_keeps_its_holdings(store: Store, seconds: float) -> None:
    """Its stream broke; whose a lock is tells the client's name, not the stream."""
    with_mail(store)
    client = Client(sessions := Sessions(store.node))
    client.ask(lock(), reap())
    client.session.close()
    store.advance(seconds)
    again = Client(sessions, stream=2)
    again.ask(lock())
    store.advance(1.0)
    again.ask(first=2)
    store.advance(4.5)
    assert held(store) == ((1, 1, 0) if seconds < 5 else (1, 0, 0))


def test_a_node_that_did_not_run_gives_everybody_another_chance(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(lock())
    store.clock.seconds += 20.0  # suspended, with everything that its clients said unread
    store.driver.settle()
    client.ask(first=2)
    store.advance(4.0)
    assert not client.session.ended
    assert held(store)[0] == 1


def test_a_client_that_takes_what_it_is_told_is_alive(store: Store) -> None:
    """It has so much to read that nothing is read from it."""
    client = Client(Sessions(store.node, NodeLimits(unread_bytes_max=1000)))
    store.db.put(b"k", bytes(10_000))
    client.ask(lock(), *[Get(b"k")] * 300)
    for _ in range(3):
        store.advance(3.0)
        assert not client.session.reading
        assert client.session.take() is not None
        client.ask(*[Get(b"k")] * 300, first=1000)
        if client.session.ended:
            break
        store.advance(1.0)
    assert held(store)[0] == 1


THIEF = b"thief..."


@pytest.mark.parametrize("kind", ["commit", "release", "lock", "reap"])
def test_a_client_cannot_touch_the_holdings_of_another(store: Store, kind: str) -> None:
    with_mail(store)
    client, thief = Client(sessions := Sessions(store.node)), Client(sessions, THIEF)
    client.ask(lock(), reap())
    before = store.dump()
    thief.ask({
        "commit": commit(store, 1, Put(b"k", b"stolen")),
        "release": ReleaseLocks(OWN + (1).to_bytes(8, "big")),
        "lock": lock(),
        "reap": reap(),
    }[kind])  # fmt: skip
    store.driver.settle()
    thief.read()
    assert thief.failures[1][0] == "Invalid"
    assert "does not begin with the client's" in thief.failures[1][1]
    assert held(store) == (1, 1, 0)
    assert store.dump() == before
    client.ask(commit(store, 1, Put(b"k", b"mine")), first=10)
    store.driver.settle()
    assert store.db.get(b"k") == b"mine"
    assert held(store) == (0, 0, 0)


def test_a_client_cannot_take_back_the_protection_of_another(store: Store) -> None:
    client, thief = Client(sessions := Sessions(store.node)), Client(sessions, THIEF)
    at = int(store.db.now())
    client.ask(Protect(at))
    thief.ask(Unprotect(at), Unprotect(at))
    thief.read()
    assert set(thief.answers) == {1, 2}
    assert held(store) == (0, 0, 1)
    client.ask(Unprotect(at), first=5)
    assert held(store) == (0, 0, 0)


def test_looking_who_is_silent_takes_one_timer(store: Store) -> None:
    sessions = Sessions(store.node)
    clients = [Client(sessions, b"%08d" % n) for n in range(200)]
    for number, client in enumerate(clients):
        client.ask(lock(client_id(b"%08d" % number), key=b"%d" % number))
    for _ in range(8):
        store.advance(1.0)
        assert store.node.sizes()["timers"] < 30
    assert all(client.session.ended for client in clients)
    assert held(store) == (0, 0, 0)
