"""A claim waits once at a node, for messages of all ranges that it leads then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import Invalid, NoSuchQueue, Unavailable
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import CreateQueue, DropQueue, QueueSettings
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.bounds import WrongRange
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.requests import CommitTransaction
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.hosting import ThreeNodes
from tests.server.splitting import ask, hosted, split
from tests.server.test_queues_of_ranges import KEYS, Q

_numbers = itertools.count(1)


@pytest.fixture
def store(store: Store) -> Store:
    """Return a store with three ranges, and a queue."""
    commit(store, CreateQueue(Q, QueueSettings(ack_wait=60.0)))
    store.advance(0.1)
    return store


def commit(store: Store, *writes: Any, anchor: bytes = b"") -> Any:
    id_, now = store.driver.next_id(), store.node.clock.reading()
    return ask(store, CommitTransaction(id_, now, 60.0, 0, anchor, [], [], [*writes]))


def message(id_: bytes, kind: str = "") -> EnqueueInQueue:
    return EnqueueInQueue(Q, id_, kind, id_, b"payload")


def enqueue(store: Store, id_: bytes, kind: str = "") -> None:
    commit(store, message(id_, kind), anchor=id_)


def a_claim(consumer: bytes | None = None, **said: Any) -> ClaimQueue:
    consumer = consumer or b"a client" + next(_numbers).to_bytes(8, "big")
    said = {"messages_max": 1, "selection": ClaimSelection(), "number": next(_numbers), **said}
    return ClaimQueue(queue=Q, consumer=consumer, wait=True, at_node=True, **said)


def wait(store: Store, **said: Any) -> Asked:
    """Have a claim wait at the node."""
    call = Asked(a_claim(**said))
    store.node.replicas.submit(call)
    store.driver.settle()
    return call


def got(call: Asked) -> list[bytes]:
    """Return the ids of the messages that a claim was given."""
    return [each.id for each in given(call)]


def given(call: Asked) -> list[StoredQueueMessage]:
    if not call.answers:
        return []
    ((answer, error),) = call.answers
    assert error is None
    messages: list[StoredQueueMessage] = answer.messages
    return messages


def manager_of(store: Store, key: bytes) -> Manager:
    replica = store.node.replicas.by_key(key)
    assert replica is not None
    return hosted(store, replica.range_id).messaging.queues._directory.known(Q)


def leased(store: Store) -> int:
    return sum(manager_of(store, key).counted.leased for key in KEYS)


def is_clean(store: Store) -> bool:
    """Return whether no claim has left anything in memory."""
    claims = store.node.replicas.claims
    waiting = claims._waiting or claims.numbers or claims._claims
    return not (waiting or any(manager_of(store, key).consumers.of_range for key in KEYS))


@pytest.mark.parametrize("key", KEYS)
def test_the_first_message_of_any_range_ends_a_wait(store: Store, key: bytes) -> None:
    call = wait(store)
    enqueue(store, key)
    assert got(call) == [key]
    bounds = store.node.replicas.by_key(key).bounds  # type: ignore[union-attr]
    assert call.answers[0][0].asked == (bounds.start, bounds.end)
    assert is_clean(store)


@pytest.mark.parametrize("key", KEYS)
def test_a_claim_finds_messages_that_are_there(store: Store, key: bytes) -> None:
    enqueue(store, key)
    call = wait(store)
    store.advance(0.1)
    assert got(call) == [key]


def test_idle_claims_write_nothing_and_ask_nothing(store: Store) -> None:
    store.advance(600.0)
    calls = [wait(store) for _ in range(100)]
    assert store.writes_of(lambda: store.advance(600.0)) == 0
    enqueue(store, b"z")
    assert sum(map(len, map(got, calls))) == 1


def test_each_of_a_thousand_messages_goes_to_one_claim_and_none_comes_back(store: Store) -> None:
    calls = [wait(store) for _ in range(1000)]
    for number in range(0, 999, 3):
        for key in KEYS:
            enqueue(store, key + b"%d" % number)
    store.advance(1.0)
    found = [id_ for call in calls for id_ in got(call)]
    assert len(found) == len({*found}) == leased(store) == 999
    assert sum(not call.answers for call in calls) == 1
    assert {each.epoch for call in calls for each in given(call)} == {0}


def test_the_consumer_that_holds_fewest_messages_of_all_ranges_is_served_first(
    store: Store,
) -> None:
    busy, idle = b"a client" + b"1" * 8, b"a client" + b"2" * 8
    for key in (b"a", b"b"):
        call = wait(store, consumer=busy)
        enqueue(store, key)
        assert got(call) == [key]
    first, second = wait(store, consumer=busy), wait(store, consumer=idle)
    enqueue(store, b"z")
    assert (got(first), got(second)) == ([], [b"z"])


def test_a_claim_takes_what_it_selects_and_leaves_the_rest_to_others(store: Store) -> None:
    of_kind = wait(store, selection=ClaimSelection(kinds=["k"]))
    enqueue(store, b"a")
    enqueue(store, b"n", "k")
    assert got(of_kind) == [b"n"]
    assert got(wait(store, selection=ClaimSelection(kinds=["k"]))) == []
    assert got(wait(store)) == [b"a"]


def test_messages_that_come_together_go_to_claims_in_turn(store: Store) -> None:
    calls = [wait(store, messages_max=100) for _ in range(10)]
    commit(store, *[message(b"z%d" % n) for n in range(100)], anchor=b"z")
    assert [len(got(call)) for call in calls] == [10] * 10


def test_a_right_half_serves_the_claims_that_wait_and_those_of_other_ranges_wait_on(
    store: Store,
) -> None:
    calls = [wait(store) for _ in range(3)]
    split(store, b"x")
    assert not any(call.answers for call in calls)
    for key in (b"a", b"w", b"y"):
        enqueue(store, key)
    assert sorted(id_ for call in calls for id_ in got(call)) == [b"a", b"w", b"y"]


def test_a_cancelled_claim_leaves_nothing(store: Store) -> None:
    call = wait(store)
    assert store.node.replicas.cancel(call)
    assert is_clean(store)
    enqueue(store, b"z")
    assert leased(store) == 0
    assert not call.answers


def test_messages_of_a_claim_that_is_cancelled_half_way_go_back_uncounted() -> None:
    cluster = Nodes()
    call = cluster.taken()
    cluster.nodes[1].replicas.cancel(call)
    cluster.until(lambda: cluster.counted(2).ready == 1 and cluster.counted(2).leased == 0)
    (again,) = cluster.ask(1, a_claim()).messages
    assert (again.id, again.epoch) == (b"z", 0)
    assert not call.answers
    cluster.close()


def test_a_proposal_that_never_comes_about_has_its_claims_wait_again(store: Store) -> None:
    call = wait(store)
    enqueue(store, b"n")
    call = wait(store)
    manager = manager_of(store, b"z")
    waiter = next(iter(manager.consumers.line(0, 10, is_complete=True)))[2]
    manager.consumers.take(waiter)
    assert manager.consumers.of_range == 1
    assert got(call) == []
    enqueue(store, b"a")
    assert got(call) == [], "another range takes no claim that is taken"
    manager.speculation.abort()
    store.advance(0.1)
    assert got(call) == [b"a"]


def test_a_claim_on_an_unknown_queue_is_refused(store: Store) -> None:
    commit(store, DropQueue(Q))
    store.advance(1.0)
    with pytest.raises(NoSuchQueue):
        ask(store, a_claim())
    assert not len(store.node.replicas.claims)


def test_claims_are_told_that_their_queue_was_dropped(store: Store) -> None:
    calls = [wait(store) for _ in range(3)]
    commit(store, DropQueue(Q))
    store.advance(1.0)
    for call in calls:
        ((_, error),) = call.answers
        assert isinstance(error, Invalid)
        assert "was dropped; nothing was claimed" in str(error)
    assert not len(store.node.replicas.claims)


def test_claims_on_a_queue_that_is_made_anew_are_not_told_of_the_old_one(store: Store) -> None:
    commit(store, DropQueue(Q))
    store.advance(3.0)
    commit(store, CreateQueue(Q, QueueSettings()))
    store.advance(0.1)
    call = wait(store)
    store.node.replicas.claims.refuse_queue(Q, 1, Invalid("the old one was dropped"))
    enqueue(store, b"z")
    assert got(call) == [b"z"]


def test_a_node_that_stops_tells_the_claims(store: Store) -> None:
    call = wait(store)
    store.node.replicas.fail_all(Unavailable("it stops"))
    ((_, error),) = call.answers
    assert str(error) == "it stops"
    assert not len(store.node.replicas.claims)


def test_a_claim_for_all_ranges_is_refused_at_a_node_that_has_one() -> None:
    store = Store()
    commit(store, CreateQueue(Q, QueueSettings()))
    with pytest.raises(WrongRange):
        ask(store, a_claim())
    store.db.close()


def test_claims_take_memory_once_however_many_ranges_there_are(
    store: Store,
) -> None:
    for number in range(20):
        split(store, b"x%02d" % number)
    calls = [wait(store) for _ in range(2000)]
    sizes = store.node.replicas.sizes()
    assert sizes["queue waits"] == len(calls)
    for range_ in store.node.replicas.hosted.values():
        assert not range_.replica.sizes()["queue waits"]
    for call in calls:
        store.node.replicas.cancel(call)
    assert is_clean(store)
    assert not store.node.replicas.sizes()["queue waits"]


# --- leases that move


class Nodes(ThreeNodes):
    """Three nodes with two ranges, both led by node 1, and a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.lead(1, 1)
        self.lead(2, 1)
        self.ask(1, self._commit(CreateQueue(Q, QueueSettings(ack_wait=60.0)), anchor=b""))
        self.until(lambda: self._knows(2))

    def _knows(self, range_id: int) -> bool:
        queues = self.hosted(self.awaited_leader(range_id), range_id).messaging.queues
        return Q in queues._directory.defined and queues._learning.knows

    def _commit(self, write: Any, anchor: bytes) -> CommitTransaction[Any]:
        id_ = b"a client" + next(_numbers).to_bytes(8, "big")
        began = self.nodes[1].clock.reading()
        return CommitTransaction(id_, began, 60.0, 0, anchor, [], [], [write])

    def enqueue(self, id_: bytes) -> None:
        leader = self.awaited_leader(1 if id_ < b"m" else 2)
        self.until(lambda: self._knows(1 if id_ < b"m" else 2))
        self.ask(leader, self._commit(message(id_), id_))

    def counted(self, range_id: int) -> Any:
        leader = self.awaited_leader(range_id)
        return self.hosted(leader, range_id).messaging.queues._directory.known(Q).counted

    def wait(self, node_id: int) -> Asked:
        call = Asked(a_claim())
        self.nodes[node_id].replicas.submit(call)
        return call

    def taken(self) -> Asked:
        """Return a claim to which a proposal under way leases a message of range 2."""
        call = self.wait(1)
        self.nodes[1].replicas.submit(Asked(self._commit(message(b"z"), b"z")))
        claims = self.nodes[1].replicas.claims._claims
        for _ in range(100):
            if claims[call].taken is not None:
                return call
            self.nodes[1].turn()
        raise AssertionError("no range takes the claim")


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


def test_a_node_that_gains_a_range_serves_the_claims_that_wait_there(cluster: Nodes) -> None:
    call = cluster.wait(2)
    cluster.enqueue(b"z")
    cluster.until(lambda: cluster.counted(2).ready)
    assert not call.answers
    cluster.lead(2, 2)
    cluster.until(lambda: call.answers)
    assert got(call) == [b"z"]


def test_a_node_that_loses_a_range_serves_the_others_and_tells_nothing(cluster: Nodes) -> None:
    call = cluster.wait(1)
    cluster.lead(2, 2)
    cluster.enqueue(b"z")
    assert not call.answers
    cluster.enqueue(b"a")
    assert got(call) == [b"a"]
    assert cluster.counted(2).ready == 1


def test_only_a_claim_whose_lease_is_undecided_hears_that_the_range_has_gone(
    cluster: Nodes,
) -> None:
    call, other = cluster.taken(), cluster.wait(1)
    cluster.hosted(1, 2).replica.stop_serving()
    ((_, error),) = call.answers
    assert isinstance(error, NotLeaseholder)
    assert not other.answers
    assert len(cluster.nodes[1].replicas.claims) == 1


def test_claims_wait_at_a_node_that_leads_nothing_yet(cluster: Nodes) -> None:
    call = cluster.wait(3)
    cluster.lead(1, 3)
    cluster.enqueue(b"a")
    assert got(call) == [b"a"]
