"""An id that others see in lists makes nobody the client whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.protocol import frames, identities, streams
from postroom.protocol.identities import FIRST_NUMBER, Identity
from postroom.ranges.requests import CommitTransaction, GetForUpdate, Put, ReleaseLocks
from postroom.server.cluster.sessions import Sessions
from postroom.server.cluster.silence import SILENT_SECONDS, Silence
from tests.client.stores import Store
from tests.remote.session_client import Client, commit

VICTIM = identities.draw(Random("victim"))
OTHER = identities.draw(Random("other"))
ID = VICTIM.client + FIRST_NUMBER.to_bytes(8, "big")


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.db.close()


def held(store: Store) -> int:
    return store.node.sizes()["locks"]


class Caller(Client):
    """Says hello as it likes."""

    def __init__(
        self, sessions: Sessions, identity: Identity, stream: int = 1, *, names: bool = True
    ) -> None:
        self._identity, self._names = identity, names
        super().__init__(sessions, identity.client, stream)

    def say(self, *message: Any) -> None:
        if message[0] == 0:
            message = (*message, self._names, self._identity.secret)
        super().say(*message)

    def last_words(self) -> str:
        said = [each for each in self.read() if isinstance(each, frames.Goodbye)]
        return said[-1].failure[1] if said else ""


def locks(sessions: Sessions) -> Caller:
    """The victim holds a lock."""
    victim = Caller(sessions, VICTIM)
    victim.ask(GetForUpdate(b"k", 0, ID, 60.0))
    sessions.node.turn()  # type: ignore[attr-defined]
    victim.read()
    assert not victim.failures
    return victim


THIEVES = {
    "no secret": (Identity(VICTIM.client, b""), True, "not the secret"),
    "another secret": (Identity(VICTIM.client, OTHER.secret), True, "not the secret"),
    "as one of the first release": (Identity(VICTIM.client, b""), False, "id of another client"),
}


@pytest.mark.parametrize("name", THIEVES)
def test_nobody_takes_over_another_client_or_its_stream(store: Store, name: str) -> None:
    identity, names, why = THIEVES[name]
    victim = locks(sessions := Sessions(store.node))
    thief = Caller(sessions, identity, 1 << 40, names=names)
    assert why in thief.last_words()
    thief.ask(ReleaseLocks(ID))
    store.driver.settle()
    assert held(store) == 1
    assert not victim.session.ended
    victim.ask(commit(store, FIRST_NUMBER, Put(b"k", b"mine"), client=VICTIM.client), first=9)
    store.driver.settle()
    assert store.db.get(b"k") == b"mine"


@pytest.mark.parametrize("name", THIEVES)
def test_nor_while_it_is_away_and_may_come_back(store: Store, name: str) -> None:
    identity, names, why = THIEVES[name]
    victim = locks(sessions := Sessions(store.node))
    victim.session.close()
    thief = Caller(sessions, identity, 1 << 40, names=names)
    assert why in thief.last_words()
    stranger = Client(sessions, b"stranger")
    stranger.ask(
        ReleaseLocks(ID), commit(store, FIRST_NUMBER, Put(b"k", b"x"), client=VICTIM.client)
    )
    store.driver.settle()
    stranger.read()
    assert {each[0] for each in stranger.failures.values()} == {"Invalid"}
    assert held(store) == 1
    back = Caller(sessions, VICTIM, 2)
    back.ask(commit(store, FIRST_NUMBER, Put(b"k", b"mine"), client=VICTIM.client))
    store.driver.settle()
    assert store.db.get(b"k") == b"mine"


def test_what_a_client_will_ask_for_is_not_committed_before_it(store: Store) -> None:
    """The victim is not here yet: its first commit would be taken for one that has been made."""
    sessions = Sessions(store.node)
    for name in (b"stranger", VICTIM.client):
        thief = Caller(sessions, Identity(name, b""), names=False)
        thief.ask(commit(store, FIRST_NUMBER, Put(b"k", b"stolen"), client=VICTIM.client))
        store.driver.settle()
        thief.read()
        assert thief.failures[1][0] == "Invalid"
    victim = Caller(sessions, VICTIM)  # who has sat down in its place has to go
    victim.ask(commit(store, FIRST_NUMBER, Put(b"k", b"mine"), client=VICTIM.client))
    store.driver.settle()
    victim.read()
    assert not victim.failures
    assert store.db.get(b"k") == b"mine"


@pytest.mark.parametrize("number", range(20))
def test_an_id_shows_that_it_has_a_secret(number: int) -> None:
    identity = identities.draw(Random(number))
    assert len(identity.secret) == identities.SECRET_BYTES
    assert identities.has_secret(identity.client)
    assert identities.client_of(identity.secret) == identity.client
    assert identities.is_of_client_with_secret(identity.client + FIRST_NUMBER.to_bytes(8, "big"))
    assert not identities.is_of_client_with_secret(identity.client + (2**62).to_bytes(8, "big"))


def test_a_client_of_the_first_release_is_served_as_before(store: Store) -> None:
    """It has no secret, and counts its transactions behind 8 bytes that it draws."""
    sessions, randomness = Sessions(store.node), Random("first release")
    for number in range(40):
        old = Caller(sessions, Identity(randomness.randbytes(8), b""), names=False)
        id_ = randomness.randbytes(8) + (1).to_bytes(8, "big")
        began = store.node.clock.reading()
        write = Put(b"%d" % number, b"v")
        old.ask(CommitTransaction(id_, began, 60.0, 0, b"k", [], [], [write]))
        store.driver.settle()
        old.read()
        assert not old.failures
        again = Caller(sessions, old._identity, 2, names=False)
        assert not again.last_words()
        assert old.session.ended, "the newer stream of the same client"


def test_who_has_no_secret_may_come_back_too(store: Store) -> None:
    """Nobody else without one touches what it holds meanwhile."""
    sessions, name = Sessions(store.node), b"one of old"[:8]
    old = Caller(sessions, Identity(name, b""), names=False)
    old.ask(GetForUpdate(b"k", 0, name + (1).to_bytes(8, "big"), 60.0))
    store.driver.settle()
    old.session.close()
    stranger = Caller(sessions, Identity(b"stranger", b""), names=False)
    stranger.ask(ReleaseLocks(name + (1).to_bytes(8, "big")))
    store.driver.settle()
    stranger.read()
    assert stranger.failures[1][0] == "Invalid"
    assert held(store) == 1


def test_a_secret_is_not_shown() -> None:
    hello = frames.Hello(frames.PROTOCOL_VERSION, VICTIM.client, 1, True, VICTIM.secret)
    opening = streams.Opening(streams.TALK, b"", "the token")
    for each in (VICTIM, hello, opening):
        assert repr(VICTIM.secret) not in repr(each)
        assert "the token" not in repr(each)


class Follower:
    """A node that comes to lead, where one client holds a lease by what is stored."""

    def __init__(self, client: bytes) -> None:
        self.replicas, self.time, self.released = self, 0.0, list[bytes]()
        self._holds = {client}
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.time

    def call_after(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append((self.time + seconds, act))

    def advance(self, until: float) -> None:
        while self._timers and self._timers[0][0] <= until:
            self.time, act = self._timers.pop(0)
            act()
        self.time = until

    def on_lease(self, act: Callable[[], None]) -> None:
        self.lead = act

    def clients_that_hold(self) -> set[bytes]:
        return set(self._holds)

    def holds_for(self, client: bytes) -> bool:
        return client in self._holds

    def release_client(self, client: bytes) -> None:
        self.released.append(client)
        self._holds.discard(client)


class Sitter:
    """A stream that has come as a client, and says nothing."""

    def __init__(self, client: bytes, *, is_proven: bool) -> None:
        self.client, self.is_proven, self.heard_at, self.open = client, is_proven, 0.0, True

    def is_busy(self) -> bool:
        return True

    def gone(self, reason: Exception) -> None:
        self.open = False
        self.silence.closed(self)

    silence: Silence


def took_over(sitter: Sitter) -> tuple[Follower, Silence]:
    """A follower to which one stream has come comes to lead after 4.8 s."""
    node = Follower(sitter.client)
    silence = sitter.silence = Silence(node, lambda: [sitter] if sitter.open else [])  # type: ignore[arg-type]
    silence.opened(sitter.client)
    node.advance(SILENT_SECONDS - 0.2)
    node.lead()
    return node, silence


def test_who_sits_in_its_place_before_a_node_leads_does_not_speak_for_it() -> None:
    """Or its leases would be taken from it as soon as that stream is found to be silent."""
    node, silence = took_over(sitter := Sitter(VICTIM.client, is_proven=False))
    assert silence.awaits(VICTIM.client), "nobody without the secret comes in now"
    node.advance(2 * SILENT_SECONDS - 0.5)
    assert not sitter.open
    assert not node.released, "it has as long as anybody to come here"
    assert silence.awaits(VICTIM.client)
    node.advance(2 * SILENT_SECONDS + 0.5)
    assert node.released == [VICTIM.client]


@pytest.mark.parametrize("client", [VICTIM.client, b"one of o"])
def test_a_client_that_was_there_before_its_node_leads_is_not_awaited(client: bytes) -> None:
    is_proven = identities.has_secret(client)
    node, silence = took_over(sitter := Sitter(client, is_proven=is_proven))
    assert not silence.awaits(client)
    node.advance(2 * SILENT_SECONDS - 0.5)
    assert sitter.open, "it has held something here for less than that"
    node.advance(2 * SILENT_SECONDS + 0.5)
    assert not sitter.open
    assert node.released == [client]


def test_a_client_that_was_idle_at_the_next_leader_keeps_its_leases() -> None:
    """It says something every ten seconds there: it was given up with the lead."""
    node = Follower(VICTIM.client)
    sitter = Sitter(VICTIM.client, is_proven=True)
    sitter.is_busy = lambda: False  # type: ignore[method-assign]
    silence = sitter.silence = Silence(node, lambda: [sitter] if sitter.open else [])  # type: ignore[arg-type]
    silence.opened(sitter.client)
    node.advance(9.0)
    sitter.is_busy = lambda: True  # type: ignore[method-assign]
    node.lead()
    node.advance(9.0 + 1.5)
    sitter.heard_at = node.time
    node.advance(9.0 + SILENT_SECONDS + 1.0)
    assert sitter.open
    assert not node.released


def test_who_is_awaited_is_not_replaced_by_who_follows_one_that_sat_there(store: Store) -> None:
    sessions = Sessions(store.node)
    Caller(sessions, Identity(VICTIM.client, b""), names=False)
    sessions._silence._heard_at[VICTIM.client] = 0.0  # this node has come to lead
    follower = Caller(sessions, Identity(VICTIM.client, b""), 2, names=False)
    assert "id of another client" in follower.last_words()
    assert not Caller(sessions, VICTIM).last_words()
