"""Sessions: what clients may do to a node, and how they end."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.errors import Unavailable
from postroom.kv.clock import from_seconds
from postroom.messaging.requests import AwaitQuiet, ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import CLOCK_AHEAD, NOT_LEASEHOLDER
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    Increment,
    Lock,
    Protect,
    Put,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
)
from postroom.ranges.whole_protections import ReleaseWhole
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.session_client import OWN, Client, commit, waiting


def test_a_client_is_welcomed_and_told_who_leads(store: Store) -> None:
    client = Client(Sessions(store.node))
    (welcome,) = client.read()
    assert isinstance(welcome, frames.Welcome)
    assert (welcome.node_id, welcome.leader, welcome.nodes) == (1, 1, [])
    assert welcome.clock == store.node.clock.reading()


def test_a_client_is_told_when_the_nodes_are_others(store: Store) -> None:
    """It is told, too, if it is never silent, and therefore never looks up."""
    sessions = Sessions(store.node)
    client = Client(sessions)
    client.read()
    store.node.nodes = Nodes(bytes(16), 3, (NodeDescriptor(2, "two:1", bytes(16)),))
    sessions.tell_nodes()
    (welcome,) = client.read()
    assert welcome.nodes == [(2, "two:1")]


def test_all_answers_of_a_turn_leave_in_one_frame(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.read()
    told = client.told
    client.ask(*(commit(store, n, Put(b"%d" % n, b"v")) for n in range(1, 51)), Get(b"x"))
    writes = store.engine.writes
    store.driver.settle()
    assert client.told == told + 1
    (frame,) = client.read()
    assert len(frame.answers) == 51
    assert store.engine.writes == writes + 1
    assert store.db.get(b"7") == b"v"


def test_a_commit_is_above_the_clients_clock(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.clock += from_seconds(0.4)
    client.ask(commit(store, 1, Put(b"k", b"v")))
    store.driver.settle()
    client.read()
    assert client.answers[1][0] > store.node.clock.reading() - from_seconds(0.1)
    assert client.answers[1][0] >= client.clock - from_seconds(0.1)


@pytest.mark.parametrize("where", ["frame", "request"])
def test_a_clock_too_far_ahead_is_refused(store: Store, where: str) -> None:
    client = Client(Sessions(store.node))
    ahead = store.node.clock.reading() + from_seconds(5)
    request = commit(store, 1, Put(b"k", b"v"))
    if where == "frame":
        client.clock = ahead
    else:
        request = CommitTransaction(OWN + bytes(8), ahead, 60.0, 0, b"k", [], [], [Put(b"k", b"v")])
    client.ask(request, Get(b"k"))
    store.driver.settle()
    client.read()
    assert client.failures[1][0] == CLOCK_AHEAD
    assert (2 in client.failures) == (where == "frame")
    assert store.db.get(b"k") is None
    assert store.node.clock.reading() < ahead


def test_errors_travel(store: Store) -> None:
    client = Client(Sessions(store.node))
    store.db.put(b"k", b"text")
    client.ask(commit(store, 1, Increment(b"k")), ScanChanges(b"a", b"b", 0, wait=False))
    store.driver.settle()
    client.read()
    assert client.failures[1][0] == "WrongType"


def test_a_node_that_has_failed_sends_its_clients_elsewhere(store: Store) -> None:
    client = Client(Sessions(store.node))
    store.node.root.replica.fail_all(Unavailable("closed"))
    client.ask(Get(b"k"))
    client.read()
    assert client.failures[1][0] == NOT_LEASEHOLDER


# --- ending


def test_waiting_requests_are_withdrawn_with_their_stream(store: Store) -> None:
    sessions = Sessions(store.node)
    client = Client(sessions)
    client.ask(
        ScanChanges(b"a", b"b", store.node.clock.reading()),
        ReapQueue(b"k", 1, 1, OWN + bytes(8), 60.0, wait=True),
    )
    assert waiting(store) == 2
    assert sessions.admission.requests == 2
    client.session.close()
    assert waiting(store) == 0
    assert (sessions.admission.requests, sessions.admission.bytes, len(sessions)) == (0, 0, 0)


def test_a_commit_that_is_not_evaluated_yet_never_is(store: Store) -> None:
    client = Client(sessions := Sessions(store.node))
    client.ask(commit(store, 1, Put(b"k", b"v")))
    client.session.close()
    store.driver.settle()
    assert store.db.get(b"k") is None
    assert sessions.admission.requests == 0


def test_protections_are_taken_back_with_the_stream(store: Store) -> None:
    store.db.put(b"k", b"old")
    client = Client(Sessions(store.node))
    at = int(store.db.now())
    client.ask(Protect(at), Protect(at), Protect(at))
    client.ask(Unprotect(at), first=10)
    store.db.put(b"k", b"new")
    for _ in range(200):
        store.advance(1)
        client.ask()
    assert store.db.get(b"k", at=at) == b"old"
    client.session.close()
    store.advance(200)
    with pytest.raises(Exception, match="garbage collected"):
        store.db.get(b"k", at=at)


def test_a_protection_that_comes_after_the_end_of_the_stream_is_taken_back(store: Store) -> None:
    client = Client(Sessions(store.node))
    asked: list[Any] = []
    submit = store.node.replicas.submit
    store.node.replicas.submit = asked.append  # type: ignore[method-assign]
    client.ask(Protect())
    client.session.close()
    store.node.replicas.submit = submit  # type: ignore[method-assign]
    asked[0].cancelled = False  # it is too late for that
    submit(asked[0])
    store.driver.settle()
    assert store.node.replicas.sizes()["protections"] == 0


def test_a_node_takes_back_what_it_has_given_though_the_clock_of_the_client_is_ahead(
    store: Store,
) -> None:
    """A client may stay for months; what it has lost would be kept for so long."""
    client = Client(Sessions(store.node))
    at = int(store.db.now())
    id_ = OWN + bytes(8)
    client.ask(Protect(at), Protect(whole=True), Lock([b"k"], [], id_, 60.0))
    store.driver.settle()
    client.read()
    whole = client.answers[2]
    assert store.node.replicas.sizes()["protections"] == 2
    client.clock += from_seconds(3600)
    client.ask(Get(b"k"), first=10)
    client.ask(Unprotect(at), Unprotect(whole), ReleaseWhole(whole), ReleaseLocks(id_), first=11)
    store.driver.settle()
    client.read()
    assert [*client.failures] == [10]
    assert store.node.replicas.sizes()["protections"] == 0
    assert not store.node.root.replica.holders.of(OWN)
    client.ask(Unprotect(at), Protect(at), Protect(), first=20)
    store.driver.settle()
    client.read()
    assert [*client.failures] == [10, 22]
    assert store.node.replicas.sizes()["protections"] == 1


def test_a_newer_stream_of_a_client_ends_the_older_one(store: Store) -> None:
    sessions = Sessions(store.node)
    old, other = Client(sessions, stream=1), Client(sessions, name=b"somebody", stream=1)
    old.ask(commit(store, 1, Put(b"k", b"old")))
    new = Client(sessions, stream=2)
    store.driver.settle()
    assert old.session.ended
    assert isinstance(old.read()[-1], frames.Goodbye)
    assert store.db.get(b"k") is None, "what was sent on the old one comes too late"
    old.ask(commit(store, 2, Put(b"k", b"old")))
    store.driver.settle()
    assert store.db.get(b"k") is None
    assert not new.session.ended
    assert not other.session.ended
    late = Client(sessions, stream=1)
    assert late.session.ended


def test_a_node_that_stops_says_goodbye(store: Store) -> None:
    sessions = Sessions(store.node)
    client = Client(sessions)
    client.ask(Get(b"k"), AwaitQuiet())
    sessions.end_all(Unavailable("the node stops"))
    *_, answers, goodbye = client.read()
    assert len(answers.answers) == 2
    assert goodbye.failure[:2] == ("Unavailable", "the node stops")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        frames.encode((1, 5, [(1, ["collect_garbage", 1, 1])], [], False)),
        frames.encode((0, 1, bytes(32), 1)),
        frames.encode((7,)),
    ],
)
def test_a_senseless_frame_ends_the_stream_and_has_no_other_effect(
    store: Store, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(sessions := Sessions(store.node))
    client.ask(AwaitQuiet(), ScanChanges(b"a", b"b", store.node.clock.reading()))
    before = store.dump()
    client.session.received(frame)
    assert client.session.ended
    assert isinstance(client.read()[-1], frames.Goodbye)
    assert "somebody" in caplog.text
    assert store.dump() == before
    assert (waiting(store), sessions.admission.requests) == (0, 0)


def test_requests_before_the_hello_end_the_stream(store: Store) -> None:
    session = Session(Sessions(store.node), "somebody", lambda: None)
    session.received(frames.encode((1, 5, [(1, Get(b"k"))])))
    assert session.ended


def test_another_version_is_refused_with_words(store: Store) -> None:
    session = Session(Sessions(store.node), "somebody", lambda: None)
    session.received(frames.encode((0, 99, bytes(32), 1)))
    frame = session.take()
    assert frame is not None
    goodbye = frames.from_node(frame)
    assert isinstance(goodbye, frames.Goodbye)
    assert goodbye.failure[0] == "VersionMismatch"
    assert "99" in goodbye.failure[1]


def test_a_number_that_is_under_way_cannot_be_used_again(store: Store) -> None:
    client = Client(Sessions(store.node))
    wait = ScanChanges(b"a", b"b", store.node.clock.reading())
    client.ask(wait)
    client.ask(wait)
    assert client.session.ended
