"""Sessions: what clients may do to a node, and what must not grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from postroom.errors import Unavailable
from postroom.kv.clock import from_seconds
from postroom.messaging.requests import AwaitQuiet, EnqueueMessage, ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import CLOCK_AHEAD, NOT_LEASEHOLDER, WITHDRAWN, Failure
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.ranges.requests import (
    CommitTransaction,
    Get,
    GetForUpdate,
    Increment,
    Now,
    Protect,
    Put,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
    Value,
)
from postroom.server.cluster.admission import Limits
from postroom.server.cluster.session import Session
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store


class Client:
    """The other end of a session, by hand."""

    def __init__(self, sessions: Sessions, client: bytes = bytes(8), stream: int = 1) -> None:
        self.told = 0
        self.session = sessions.open("somebody", self._tell)
        self.clock = sessions.node.clock.reading()
        self.frames: list[Any] = []
        self.answers: dict[int, Any] = {}
        self.failures: dict[int, Failure] = {}
        self._sessions = sessions
        self.say(0, frames.PROTOCOL_VERSION, client, stream)

    def _tell(self) -> None:
        self.told += 1

    def say(self, *message: Any) -> None:
        self.session.received(frames.encode(message))

    def ask(self, *requests: Any, first: int = 1, withdrawn: tuple[int, ...] = ()) -> None:
        self.say(1, self.clock, list(enumerate(requests, first)), withdrawn, False)

    def read(self) -> list[Any]:
        """The frames that have come since."""
        messages = []
        while (frame := self.session.take()) is not None:
            messages.append(message := frames.from_node(frame))
            if isinstance(message, frames.Answers):
                self.clock = max(self.clock, message.clock)
                for answer in message.answers:
                    if answer.failure is None:
                        self.answers[answer.number] = msgspec.msgpack.decode(answer.result)
                    else:
                        self.failures[answer.number] = answer.failure
        self.frames += messages
        return messages


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.db.close()


def commit(
    store: Store, number: int, *writes: Any, client: bytes = bytes(8)
) -> CommitTransaction[Any]:
    began = store.node.clock.reading()
    id_ = client + number.to_bytes(8, "big")
    return CommitTransaction(id_, began, 60.0, 0, b"k", [], [], list(writes))


def waiting(store: Store) -> int:
    return sum(map(len, store.node.replica.waiting_for.values()))


def test_a_client_is_welcomed_and_told_who_leads(store: Store) -> None:
    client = Client(Sessions(store.node))
    (welcome,) = client.read()
    assert isinstance(welcome, frames.Welcome)
    assert (welcome.node_id, welcome.leader, welcome.nodes) == (1, 1, [])
    assert welcome.clock == store.node.clock.reading()


def test_a_client_is_told_when_the_nodes_are_others(store: Store) -> None:
    """Also if it is never silent, and so never looks up."""
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
        request = CommitTransaction(bytes(16), ahead, 60.0, 0, b"k", [], [], [Put(b"k", b"v")])
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
    store.node.replica.fail_all(Unavailable("closed"))
    client.ask(Get(b"k"))
    client.read()
    assert client.failures[1][0] == NOT_LEASEHOLDER


# --- ending


def test_what_waits_is_withdrawn_with_its_stream(store: Store) -> None:
    sessions = Sessions(store.node)
    client = Client(sessions)
    client.ask(
        ScanChanges(b"a", b"b", store.node.clock.reading()),
        ReapQueue(b"k", 1, 1, bytes(16), 60.0, wait=True),
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


def test_a_newer_stream_of_a_client_ends_the_older_one(store: Store) -> None:
    sessions = Sessions(store.node)
    old, other = Client(sessions, stream=1), Client(sessions, client=b"somebody", stream=1)
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
        frames.encode((0, 1, bytes(8), 1)),
        frames.encode((7,)),
    ],
)
def test_what_makes_no_sense_ends_the_stream_and_does_nothing_else(
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
    session.received(frames.encode((0, 99, bytes(8), 1)))
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


# --- silence, and whose is what


def lock(client: bytes = bytes(8), number: int = 1, key: bytes = b"lock") -> GetForUpdate:
    return GetForUpdate(key, 0, client + number.to_bytes(8, "big"), 60.0)


def reap(client: bytes = bytes(8), number: int = 1) -> ReapQueue:
    return ReapQueue(b"inbox", 10, 1000, client + number.to_bytes(8, "big"), 60.0)


def held(store: Store) -> tuple[int, int, int]:
    sizes = store.node.sizes()
    return sizes["locks"], sizes["claims"], sizes["protections"]


def with_mail(store: Store) -> None:
    with store.db.begin() as tx:
        tx.enqueue_message(b"inbox", b"m")


def test_who_holds_something_and_falls_silent_has_gone(store: Store) -> None:
    with_mail(store)
    client, other = Client(sessions := Sessions(store.node)), Client(sessions, b"somebody")
    client.ask(lock(), reap(), Protect())
    other.ask(lock(b"somebody"))
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


def test_who_says_something_keeps_it(store: Store) -> None:
    with_mail(store)
    client = Client(Sessions(store.node))
    client.ask(lock(), reap(), Protect())
    for _ in range(20):
        store.advance(2.0)
        client.ask()
    assert held(store) == (1, 1, 1)
    assert not client.session.ended


def test_who_waits_and_falls_silent_waits_no_more(store: Store) -> None:
    client = Client(sessions := Sessions(store.node))
    client.ask(ScanChanges(b"a", b"b", store.node.clock.reading()), AwaitQuiet())
    store.advance(5.6)
    assert client.session.ended
    assert (waiting(store), sessions.admission.requests, len(sessions)) == (0, 0, 0)


def test_who_neither_waits_nor_holds_may_be_silent_for_longer(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(Get(b"k"))
    store.advance(29.0)
    assert not client.session.ended
    store.advance(2.0)
    assert client.session.ended


@pytest.mark.parametrize("seconds", [4.0, 6.0])
def test_who_comes_back_in_time_keeps_what_it_held(store: Store, seconds: float) -> None:
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
    client = Client(Sessions(store.node, Limits(unread_bytes_max=1000)))
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
def test_nobody_touches_what_another_client_holds(store: Store, kind: str) -> None:
    with_mail(store)
    client, thief = Client(sessions := Sessions(store.node)), Client(sessions, THIEF)
    client.ask(lock(), reap())
    before = store.dump()
    thief.ask({
        "commit": commit(store, 1, Put(b"k", b"stolen")),
        "release": ReleaseLocks((1).to_bytes(16, "big")),
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


def test_nobody_takes_back_what_another_client_protects(store: Store) -> None:
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
    clients = [Client(sessions, bytes([n] * 8)) for n in range(200)]
    for number, client in enumerate(clients):
        client.ask(lock(bytes([number] * 8), key=b"%d" % number))
    for _ in range(8):
        store.advance(1.0)
        assert store.node.sizes()["timers"] < 30
    assert all(client.session.ended for client in clients)
    assert held(store) == (0, 0, 0)


# --- withdrawing


def test_what_is_withdrawn_is_answered_and_forgotten(store: Store) -> None:
    client = Client(sessions := Sessions(store.node))
    client.ask(ScanChanges(b"a", b"b", store.node.clock.reading()))
    client.ask(withdrawn=(1, 99))
    client.read()
    assert client.failures[1][0] == WITHDRAWN
    assert (waiting(store), sessions.admission.requests) == (0, 0)
    store.db.put(b"a", b"1")
    assert client.read() == []


def test_what_can_be_answered_at_once_is_not_withdrawn(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(AwaitQuiet(), withdrawn=(1,))
    client.read()
    assert client.answers == {1: None}


def test_what_is_withdrawn_while_it_is_written_is_answered_once(store: Store) -> None:
    client = Client(sessions := Sessions(store.node))
    client.read()
    store.engine.before_write = lambda _: client.ask(withdrawn=(1,))
    client.ask(commit(store, 1, Put(b"k", b"v")))
    store.driver.settle()
    store.engine.before_write = lambda _: None
    answers = [answer.number for frame in client.read() for answer in frame.answers]
    assert answers == [1]
    assert (sessions.admission.requests, sessions.admission.bytes) == (0, 0)
    assert store.db.get(b"k") == b"v", "it was too late for that"


# --- limits


def test_a_node_that_is_full_says_so_at_once(store: Store) -> None:
    sessions = Sessions(store.node, Limits(requests_max=3, retry_after_seconds=0.7))
    client = Client(sessions)
    client.ask(*(commit(store, n, Put(b"%d" % n, b"v")) for n in range(1, 6)))
    client.read()
    assert sorted(client.failures) == [4, 5]
    assert client.failures[4][0] == "Unavailable"
    assert client.failures[4][2] == 0.7
    store.driver.settle()
    client.read()
    assert sorted(client.answers) == [1, 2, 3]
    client.ask(Get(b"1"), first=10)
    client.read()
    assert client.answers[10][0] == b"v"


def test_bytes_count_too_over_all_sessions(store: Store) -> None:
    sessions = Sessions(store.node, Limits(bytes_max=3000))
    first, second = Client(sessions, b"11111111"), Client(sessions, b"22222222")
    big = Put(b"k", bytes(2000))
    first.ask(commit(store, 1, big, client=b"11111111"))
    second.ask(commit(store, 2, big, client=b"22222222"))
    second.ask(commit(store, 3, big, client=b"22222222"), first=2)
    second.read()
    assert list(second.failures) == [2]
    store.driver.settle()
    assert sessions.admission.bytes == 0


def test_one_client_cannot_take_all(store: Store) -> None:
    sessions = Sessions(store.node, Limits(stream_requests_max=1, stream_waits_max=2))
    client, other = Client(sessions), Client(sessions, b"somebody")
    at = store.node.clock.reading()
    client.ask(*[ScanChanges(b"a", b"b", at)] * 4)
    client.read()
    assert list(client.failures) == [4]
    other.ask(Get(b"k"))
    other.read()
    assert 1 in other.answers


def test_so_many_clients_and_no_more(store: Store) -> None:
    sessions = Sessions(store.node, Limits(streams_max=2))
    clients = [Client(sessions, bytes([n] * 8)) for n in range(3)]
    assert [client.session.ended for client in clients] == [False, False, True]


def test_who_does_not_take_answers_is_not_read_from(store: Store) -> None:
    store.db.put(b"k", bytes(100_000))
    client = Client(Sessions(store.node, Limits(unread_bytes_max=1_000_000)))
    asked = 0
    while client.session.reading:
        client.ask(*[Get(b"k")] * 64, first=asked + 1)
        asked += 64
        assert asked < 2000
    client.read()
    assert client.session.reading
    assert len(client.answers) == asked


def test_answers_too_large_for_a_frame_leave_in_several(store: Store) -> None:
    store.db.put(b"k", bytes(1024 * 1024))
    client = Client(Sessions(store.node, Limits(unread_bytes_max=1 << 30)))
    client.read()
    client.ask(*[Get(b"k")] * 70)
    assert len(client.read()) > 1
    assert len(client.answers) == 70


def test_a_reaper_without_a_limit_gets_one(store: Store) -> None:
    with store.db.begin() as tx:
        for _ in range(15):
            tx.enqueue_message(b"k", bytes(1024 * 1024 - 10))
    with store.db.begin() as tx:
        for _ in range(5):
            tx.enqueue_message(b"k", bytes(1024 * 1024 - 10))
    client = Client(Sessions(store.node))
    client.ask(ReapQueue(b"k", 1000, 1 << 62, bytes(16), 60.0))
    client.read()
    taken, more, drained = client.answers[1]
    assert (len(taken), more, drained) == (15, True, None)


def test_messages_arrive_at_who_waits(store: Store) -> None:
    client, other = Client(sessions := Sessions(store.node)), Client(sessions, b"somebody")
    client.ask(ReapQueue(b"k", 10, 100, bytes(16), 60.0, wait=True))
    assert client.read()[1:] == []
    other.ask(commit(store, 1, EnqueueMessage(b"k", b"m"), client=b"somebody"))
    store.driver.settle()
    client.read()
    assert client.answers[1][0]


def test_the_lease_and_the_clock_go_with_the_answers(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(Now())
    (_, frame) = client.read()
    assert frame.lease == store.node.replica.lease.sequence
    assert frame.clock >= client.answers[1]
    assert isinstance(Value(None, 1), Value)


def test_a_client_of_the_first_release_may_have_any_id_but_that_of_another_one(
    store: Store,
) -> None:
    sessions = Sessions(store.node)
    other = Client(sessions, client=b"other---")
    old = Client(sessions)
    began = store.node.clock.reading()

    def commit_as(client: bytes) -> CommitTransaction[Any]:
        id_ = client + bytes(8)
        return CommitTransaction(id_, began, 60.0, 0, b"k", [], [], [Put(b"k", b"v")])

    old.ask(commit_as(b"drawn---"), commit_as(b"other---"))
    store.node.turn()
    old.read()
    assert 1 in old.answers
    assert old.failures[2][0] == "Invalid"
    other.session.close()
