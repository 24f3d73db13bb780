"""Limits of a node's memory: withdrawn calls, requests under way, answers that are not read."""

from __future__ import annotations

import pytest

from postroom import limits
from postroom.messaging.requests import AwaitQuiet, EnqueueMessage, ReapQueue
from postroom.protocol.failures import WITHDRAWN
from postroom.ranges.requests import (
    Get,
    GetForUpdate,
    Increment,
    Now,
    Put,
    ReleaseLocks,
    ScanChanges,
    Unprotect,
    Value,
)
from postroom.server.cluster.admission import NodeLimits
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import client_id
from tests.remote.session_client import OWN, Client, commit, waiting
from tests.work import lines_of

# --- withdrawing


def test_a_withdrawn_request_is_answered_and_forgotten(store: Store) -> None:
    client = Client(sessions := Sessions(store.node))
    client.ask(ScanChanges(b"a", b"b", store.node.clock.reading()))
    client.ask(withdrawn=(1, 99))
    client.read()
    assert client.failures[1][0] == WITHDRAWN
    assert (waiting(store), sessions.admission.requests) == (0, 0)
    store.db.put(b"a", b"1")
    assert client.read() == []


def test_a_request_that_can_be_answered_at_once_is_not_withdrawn(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(AwaitQuiet(), withdrawn=(1,))
    client.read()
    assert client.answers == {1: None}


def test_a_withdrawn_request_takes_no_lock_that_comes_free_with_it(store: Store) -> None:
    """Its transaction had let go of all that it held, and then it was given the lock."""
    client = Client(Sessions(store.node))
    holder, waiter = OWN + bytes(7) + b"1", OWN + bytes(7) + b"2"
    client.ask(GetForUpdate(b"k", 0, holder, 60.0), GetForUpdate(b"k", 0, waiter, 60.0))
    client.read()
    assert (list(client.answers), store.node.sizes()["locks"]) == ([1], 1)
    client.ask(ReleaseLocks(waiter), ReleaseLocks(holder), first=3, withdrawn=(2,))
    client.read()
    assert client.failures[2][0] == WITHDRAWN
    assert (waiting(store), store.node.sizes()["locks"]) == (0, 0)


def test_a_request_withdrawn_while_it_is_written_is_answered_once(store: Store) -> None:
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


def test_a_number_reused_after_a_withdrawal_gets_its_own_answer(
    store: Store,
) -> None:
    """The first request is under way.

    Its answer must not be taken for that of the second one, nor its bytes be taken off twice: a
    client could make room for any number of bytes.
    """
    client = Client(sessions := Sessions(store.node))
    client.read()

    def again(_: object) -> None:
        store.engine.before_write = lambda _: None
        client.ask(withdrawn=(1,))
        client.ask(commit(store, 2, Increment(b"n", 5)))

    store.engine.before_write = again
    client.ask(commit(store, 1, Put(b"k", bytes(2000))))
    store.driver.settle()
    client.read()
    assert client.answers[1][1] == [5]
    assert (sessions.admission.requests, sessions.admission.bytes) == (0, 0)
    assert client.session._own_bytes == 0


# --- limits


def test_a_node_that_is_full_says_so_at_once(store: Store) -> None:
    sessions = Sessions(store.node, NodeLimits(requests_max=3, retry_after_seconds=0.7))
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


def test_a_principal_with_many_clients_has_the_share_of_one_with_one(store: Store) -> None:
    sessions = Sessions(store.node, NodeLimits(requests_max=8))
    many = [Client(sessions, b"%d" % number, host="ipv4:10.0.0.1:1") for number in range(4)]
    one = Client(sessions, b"one", host="ipv4:10.0.0.2:1")
    at = store.node.clock.reading()
    for client in many:
        client.ask(*[ScanChanges(b"a", b"b", at)] * 2)
    one.ask(*[ScanChanges(b"a", b"b", at)] * 5)
    one.read()
    assert list(one.failures) == [5]
    many[0].ask(ScanChanges(b"a", b"b", at), first=3)
    many[0].read()
    assert list(many[0].failures) == [3]


def test_bytes_count_too_over_all_sessions(store: Store) -> None:
    sessions = Sessions(store.node, NodeLimits(bytes_max=6000))
    first, second = Client(sessions, b"11111111"), Client(sessions, b"22222222")
    big = Put(b"k", bytes(2000))
    first.ask(commit(store, 1, big, client=client_id(b"11111111")))
    second.ask(commit(store, 2, big, client=client_id(b"22222222")))
    second.ask(commit(store, 3, big, client=client_id(b"22222222")), first=2)
    second.read()
    assert list(second.failures) == [2]
    store.driver.settle()
    assert sessions.admission.bytes == 0


def test_one_client_cannot_take_all(store: Store) -> None:
    sessions = Sessions(store.node, NodeLimits(stream_requests_max=1, stream_waits_max=2))
    client, other = Client(sessions), Client(sessions, b"somebody")
    at = store.node.clock.reading()
    client.ask(*[ScanChanges(b"a", b"b", at)] * 4)
    client.read()
    assert list(client.failures) == [4]
    other.ask(Get(b"k"))
    other.read()
    assert 1 in other.answers


def test_the_number_of_streams_is_limited(store: Store) -> None:
    sessions = Sessions(store.node, NodeLimits(streams_max=2))
    clients = [Client(sessions, b"%d" % n) for n in range(3)]
    assert [client.session.ended for client in clients] == [False, False, True]


def test_a_session_stops_reading_from_a_client_with_unread_answers(store: Store) -> None:
    store.db.put(b"k", bytes(100_000))
    client = Client(Sessions(store.node, NodeLimits(unread_bytes_max=1_000_000)))
    asked = 0
    while client.session.reading:
        client.ask(*[Get(b"k")] * 64, first=asked + 1)
        asked += 64
        assert asked < 2000
    client.read()
    assert client.session.reading
    assert len(client.answers) == asked


def test_a_session_reads_again_from_a_client_whose_turn_came_late(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is told that there is room again.

    Otherwise its next frame is read when it is answered, and until then it takes the node for dead.
    """
    monkeypatch.setattr(limits, "TURN_STEPS_MAX", 2)
    sessions = Sessions(store.node)
    holder, client = Client(sessions), Client(sessions, b"other")
    holder.ask(GetForUpdate(b"lock", 0, OWN + bytes(8), 60.0), *[Get(b"k")] * 3)
    store.driver.settle()
    client.read()
    holder.ask(*[Get(b"k")] * 3, first=5)
    assert store.node.replicas.is_used_up
    client.ask(GetForUpdate(b"lock", 0, client_id(b"other") + bytes(8), 60.0))
    assert not client.session.reading
    told = client.told
    store.driver.settle()
    assert client.session.reading
    assert client.told > told
    assert client.read() == []
    assert (client.answers, waiting(store)) == ({}, 1)


def test_answers_too_large_for_a_frame_leave_in_several(store: Store) -> None:
    store.db.put(b"k", bytes(1024 * 1024))
    client = Client(Sessions(store.node, NodeLimits(unread_bytes_max=1 << 30)))
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
    client.ask(ReapQueue(b"k", 1000, 1 << 62, OWN + bytes(8), 60.0))
    client.read()
    taken, more, drained = client.answers[1]
    assert (len(taken), more, drained) == (15, True, None)


def test_messages_arrive_at_who_waits(store: Store) -> None:
    client, other = Client(sessions := Sessions(store.node)), Client(sessions, b"somebody")
    client.ask(ReapQueue(b"k", 10, 100, OWN + bytes(8), 60.0, wait=True))
    assert client.read()[1:] == []
    other.ask(commit(store, 1, EnqueueMessage(b"k", b"m"), client=client_id(b"somebody")))
    store.driver.settle()
    client.read()
    assert client.answers[1][0]


def test_the_lease_and_the_clock_go_with_the_answers(store: Store) -> None:
    client = Client(Sessions(store.node))
    client.ask(Now())
    (_, frame) = client.read()
    assert frame.lease == store.node.root.replica.lease.sequence
    assert frame.clock >= client.answers[1]
    assert isinstance(Value(None, 1), Value)


def test_a_client_cut_off_while_it_is_answered_does_not_count(store: Store) -> None:
    """The answers that it was still to get do not count as unread.

    Otherwise some hundred clients that provoke that cut off every client with an answer to read.
    """
    sessions = Sessions(store.node, NodeLimits(unread_bytes_max=1000, unread_bytes_end=1000))
    client = Client(sessions)
    client.read()
    numbers = tuple(range(1, 401))
    client.ask(*[ScanChanges(b"a", b"b", store.node.clock.reading())] * len(numbers))
    client.ask(withdrawn=numbers)
    assert client.session.ended
    client.read()
    store.driver.settle()
    assert sessions.admission.unread_bytes == 0
    assert (sessions.admission.requests, sessions.admission.bytes) == (0, 0)


def test_taking_back_what_was_never_protected_costs_the_same_however_much_is_asked(
    store: Store,
) -> None:
    lines = []
    for number in (10, 1000):
        client = Client(Sessions(store.node), name=b"%08d" % number)
        client.ask(*[AwaitQuiet() for _ in range(number)])
        waits = ScanChanges(b"a", b"b", store.node.clock.reading())
        client.ask(*[waits for _ in range(number)], first=number + 1)
        store.driver.settle()
        asked = [Unprotect(each) for each in range(1, 11)]
        lines.append(lines_of(client.ask, *asked, first=10_000))
        client.read()
        assert all(client.answers[10_000 + each] is None for each in range(10))
    assert lines[1] < 2 * lines[0]
