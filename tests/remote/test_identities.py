"""An id that others see in lists makes no other client the one whose id it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest

from postroom.protocol import frames, streams
from postroom.ranges.requests import GetForUpdate, Put, ReleaseLocks
from postroom.server.cluster.sessions import SILENT_SECONDS, ClientTimeouts, Sessions
from tests.client.stores import Store
from tests.remote.session_client import Client, commit

VICTIM = frames.draw_identity(Random("victim"))
THIEF = frames.draw_identity(Random("thief"))
ID = VICTIM.client + (1).to_bytes(8, "big")


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.db.close()


def held(store: Store) -> int:
    return store.node.sizes()["locks"]


def victim_with_a_lock(sessions: Sessions) -> Client:
    victim = Client(sessions, secret=VICTIM.secret)
    victim.ask(GetForUpdate(b"k", 0, ID, 60.0))
    sessions.node.turn()  # type: ignore[attr-defined]
    victim.read()
    assert not victim.failures
    return victim


def rob(store: Store, sessions: Sessions, stream: int) -> None:
    """Release the lock, and commit in the victim's place, as another client that knows its id."""
    thief = Client(sessions, stream=stream, secret=THIEF.secret)
    thief.ask(ReleaseLocks(ID), commit(store, 1, Put(b"k", b"x"), client=VICTIM.client))
    store.driver.settle()
    thief.read()
    assert [thief.failures[number][0] for number in (1, 2)] == ["Invalid", "Invalid"]


def test_a_client_that_knows_the_id_of_another_one_cannot_act_for_it(store: Store) -> None:
    victim = victim_with_a_lock(sessions := Sessions(store.node))
    rob(store, sessions, 1 << 40)
    assert held(store) == 1
    assert not victim.session.ended
    victim.ask(commit(store, 1, Put(b"k", b"mine"), client=VICTIM.client), first=9)
    store.driver.settle()
    assert store.db.get(b"k") == b"mine"


def test_a_client_that_comes_back_with_its_secret_finds_what_it_held(store: Store) -> None:
    victim = victim_with_a_lock(sessions := Sessions(store.node))
    victim.session.close()
    rob(store, sessions, 1 << 40)
    assert held(store) == 1
    back = Client(sessions, stream=2, secret=VICTIM.secret)
    assert back.session.client == VICTIM.client
    back.ask(commit(store, 1, Put(b"k", b"mine"), client=VICTIM.client))
    store.driver.settle()
    assert store.db.get(b"k") == b"mine"


def test_a_commit_in_the_name_of_a_client_that_is_not_here_yet_is_refused(store: Store) -> None:
    sessions = Sessions(store.node)
    rob(store, sessions, 1)
    victim = Client(sessions, secret=VICTIM.secret)
    victim.ask(commit(store, 1, Put(b"k", b"mine"), client=VICTIM.client))
    store.driver.settle()
    assert store.db.get(b"k") == b"mine"


@pytest.mark.parametrize("secret", [b"", VICTIM.client, VICTIM.secret[1:], VICTIM.secret + b"x"])
def test_a_hello_without_a_whole_secret_ends_the_stream(store: Store, secret: bytes) -> None:
    session = Sessions(store.node).open("somebody", lambda: None)
    session.received(frames.encode((0, frames.PROTOCOL_VERSION, secret, 1)))
    assert session.ended


def test_an_id_is_made_from_the_secret_alone() -> None:
    drawn = [frames.draw_identity(Random(number)) for number in range(20)]
    assert len({each.client for each in drawn}) == len(drawn)
    for each in drawn:
        assert len(each.secret) == frames.SECRET_BYTES
        assert frames.client_of(each.secret) == each.client


def test_a_secret_is_not_shown() -> None:
    hello = frames.Hello(frames.PROTOCOL_VERSION, VICTIM.secret, 1)
    opening = streams.Opening(streams.TALK, b"", "the token")
    for each in (VICTIM, hello, opening):
        assert repr(VICTIM.secret) not in repr(each)
        assert "the token" not in repr(each)


# --- clients of a node that comes to lead ---------------------------------------------------------


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


class QuietStream:
    """A stream of a client that holds something, and says nothing."""

    def __init__(self, client: bytes) -> None:
        self.client, self.heard_at, self.open, self.busy = client, 0.0, True, True
        self.silence: ClientTimeouts

    def is_busy(self) -> bool:
        return self.busy

    def gone(self, reason: Any) -> None:
        self.open = False
        self.silence.closed(self)


def watched(stream: QuietStream) -> Follower:
    """Return a follower to which the stream has come."""
    node: Any = Follower(stream.client)
    silence = stream.silence = ClientTimeouts(node, lambda: [stream] if stream.open else [])
    silence.opened(stream.client)
    assert isinstance(node, Follower)
    return node


def test_a_client_at_a_follower_is_given_time_when_that_begins_to_lead() -> None:
    node = watched(stream := QuietStream(VICTIM.client))
    node.advance(SILENT_SECONDS - 0.2)
    node.lead()
    node.advance(2 * SILENT_SECONDS - 0.5)
    assert stream.open, "it has held something here for less than that"
    node.advance(2 * SILENT_SECONDS + 0.5)
    assert not stream.open
    assert node.released == [VICTIM.client]


def test_a_client_that_was_idle_at_the_next_leader_keeps_its_leases() -> None:
    """An idle client says something every ten seconds only."""
    node = watched(stream := QuietStream(VICTIM.client))
    stream.busy = False
    node.advance(9.0)
    stream.busy = True
    node.lead()
    node.advance(9.0 + 1.5)
    stream.heard_at = node.time
    node.advance(9.0 + SILENT_SECONDS + 1.0)
    assert stream.open
    assert not node.released
