"""Consumers of a store whose ranges three nodes lead: a claim waits once at each node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from postroom.errors import Unavailable
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.raft.interface import RaftOptions
from postroom.ranges.requests import Get
from tests.remote.scripted_nodes import Asked
from tests.remote.streams import DatabaseOverStreams
from tests.server.hosting import MEMBERS, ThreeNodes

Q: Final = "work"
CUTS: Final = [b"%02d" % number for number in range(1, 12)]
KEYS: Final = [b"00", *CUTS]
"""A key of each range."""

_numbers = itertools.count(1)


class Nodes(ThreeNodes):
    """Three nodes that lead four ranges each."""

    def __init__(self) -> None:
        super().__init__(*CUTS)
        self.turn_seconds = 0.005
        for range_id in self.range_ids:
            self.lead(range_id, range_id % 3 + 1)

    def waits(self) -> list[int]:
        """Return how many claims wait at each node."""
        return [len(node.replicas.claims) for node in self.nodes.values()]

    def leased(self) -> int:
        """Return how many messages consumers hold."""
        every = [self.hosted(self.awaited_leader(each), each) for each in self.range_ids]
        queues = [each.messaging.queues for each in every]
        return sum(each._by_name[Q].counted.leased for each in queues if Q in each._by_name)


@pytest.fixture
def three() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


class Client(DatabaseOverStreams):
    """A client that cannot reach the nodes that are down."""

    def __init__(self, nodes: Nodes, seed: int = 3) -> None:
        self._refused: list[int] = []
        super().__init__(nodes, seed)

    def open(self, link: int, address: str) -> None:
        if int(address[-1]) in self.nodes.nodes:
            super().open(link, address)
        else:
            self._refused.append(link)

    def _carry(self) -> None:
        refused, self._refused = self._refused, []
        for link in refused:
            self.router.disconnected(link, Unavailable("it is down"))
        super()._carry()

    def lose(self, node_id: int) -> None:
        """Lose a node, which crashes."""
        self.nodes.crash(node_id)
        links = [n for n, each in self._open.items() if each._node.node_id == node_id]
        for link in links:
            del self._open[link]
            self.router.disconnected(link, Unavailable("it crashed"))


@pytest.fixture
def store(three: Nodes) -> Client:
    made = Client(three)
    made.run(made.db.create_queue(Q, ack_wait=7200.0))
    return made


def enqueue(store: Client, *ids: bytes) -> None:
    async def send() -> None:
        for id_ in ids:
            async with store.db.begin() as tx:
                tx.enqueue(Q, id_, id=id_, key=id_)

    store.run(send())


def wait(store: Client, number: int = 1) -> list[Asked]:
    """Have claims wait at all nodes."""
    calls = []
    for _ in range(number):
        consumer = store.router.client + next(_numbers).to_bytes(8, "big")
        calls.append(Asked(ClaimQueue(Q, consumer, 1, ClaimSelection(), wait=True)))
        store.router.submit(calls[-1])
    nodes: Any = store.nodes
    store.until(lambda: min(nodes.waits()) >= number)
    return calls


def given(calls: list[Asked]) -> list[StoredQueueMessage]:
    assert not [call.error for call in calls if call.error]
    return [each for call in calls if call.answers for each in call.result.messages]


def ids(calls: list[Asked]) -> list[bytes]:
    return sorted(each.id for each in given(calls))


def test_each_message_goes_to_one_of_many_consumers_at_its_first_attempt(
    three: Nodes, store: Client
) -> None:
    calls = wait(store, 120)
    assert three.waits() == [120] * 3
    sent = [key + b"%d" % number for number in range(10) for key in KEYS]
    enqueue(store, *sent)
    store.until(lambda: len(given(calls)) == len(sent))
    assert ids(calls) == sorted(sent)
    assert {each.epoch for each in given(calls)} == {0}
    store.until(lambda: three.waits() == [0] * 3)
    store.until(lambda: three.leased() == len(sent))


def test_a_claim_waits_on_while_leases_move(three: Nodes, store: Client) -> None:
    (call,) = wait(store)
    for turn in range(3):
        three.turn_seconds = 0.25
        store.pass_time(60.0)
        three.turn_seconds = 0.005
        for range_id, key in zip(three.range_ids, KEYS, strict=True):
            store.ask(Get(key))  # it takes a lease again
            three.lead(range_id, (range_id + turn) % 3 + 1)
    assert not call.answers
    store.until(lambda: three.waits() == [1, 1, 1])
    enqueue(store, b"07")
    store.until(lambda: call.answers, 0.1)
    assert ids([call]) == [b"07"]


def test_a_claim_follows_a_range_to_a_node_that_led_nothing() -> None:
    three = Nodes()
    for range_id in three.range_ids:
        three.lead(range_id, 1)
    store = Client(three)
    store.run(store.db.create_queue(Q))
    call = Asked(ClaimQueue(Q, store.router.client + bytes(8), 1, ClaimSelection(), wait=True))
    store.router.submit(call)
    store.until(lambda: three.waits() == [1, 0, 0])
    three.lead(5, 3)
    store.until(lambda: three.waits() == [1, 0, 1], 1.0)
    enqueue(store, KEYS[4])
    store.until(lambda: call.answers, 0.1)
    assert ids([call]) == [KEYS[4]]
    store.until(lambda: three.waits() == [0, 0, 0])
    three.close()


@pytest.mark.parametrize("node_id", MEMBERS)
def test_a_claim_outlives_a_node(store: Client, node_id: int) -> None:
    calls = wait(store, 3)
    store.lose(node_id)
    for key in (b"00", b"01", b"02"):
        enqueue(store, key)
    store.until(lambda: len(given(calls)) == 3)
    assert ids(calls) == [b"00", b"01", b"02"]


def test_messages_of_a_consumer_that_vanishes_amid_two_answers_go_to_others(
    three: Nodes, store: Client
) -> None:
    other = Client(three, seed=4)
    wait(other, 2)
    before = three.waits()
    gone = [*other._open.values()]
    other._open.clear()
    enqueue(store, b"01", b"02")
    store.until(lambda: three.leased() == 2)
    assert sum(before) - sum(three.waits()) == 2
    store.pass_time(3.0)
    for session in gone:
        session.close()
    calls = wait(store, 2)
    store.until(lambda: len(given(calls)) == 2, 10.0)
    assert ids(calls) == [b"01", b"02"]
    store.until(lambda: three.waits() == [0, 0, 0])


# --- definitions


def test_a_consumer_of_a_queue_that_was_just_made_is_never_told_that_there_is_none(
    three: Nodes, store: Client
) -> None:
    for number in range(5):
        name = f"new {number}"
        store.run(store.db.create_queue(name))
        calls = [
            Asked(
                ClaimQueue(
                    name, store.router.client + b"new %4d" % each, 1, ClaimSelection(), wait=True
                )
            )
            for each in range(3)
        ]
        for call in calls:
            store.router.submit(call)
        store.until(lambda: min(three.waits()) >= 3)
        assert not any(call.answers for call in calls)
        for call in calls:
            store.router.cancel(call)
        store.until(lambda: three.waits() == [0, 0, 0])


def test_claims_wait_for_messages_of_the_new_queue_after_the_old_one_was_dropped(
    three: Nodes, store: Client
) -> None:
    enqueue(store, *[key + b"old" for key in KEYS])
    store.run(store.db.queue(Q).claim(len(KEYS)))
    calls = wait(store, 3)
    store.run(store.db.queue(Q).drop())
    store.until(lambda: all(call.answers for call in calls))
    assert {str(call.error) for call in calls} == {
        f"the queue {Q!r} was dropped; nothing was claimed"
    }
    store.until(lambda: three.waits() == [0, 0, 0])
    store.run(made_anew(store))
    calls = wait(store, len(KEYS))
    enqueue(store, *KEYS)
    store.until(lambda: len(given(calls)) == len(KEYS))
    assert ids(calls) == KEYS


async def made_anew(store: Client) -> None:
    while True:
        try:
            await store.db.create_queue(Q, ack_wait=60.0)
        except Unavailable:
            await store.sleep(0.1)
        else:
            return


def test_a_pause_is_obeyed_in_all_ranges_within_a_heartbeat_of_the_root(
    three: Nodes, store: Client
) -> None:
    enqueue(store, *[key + b"first" for key in KEYS])  # all ranges know the queue
    store.run(store.db.queue(Q).claim(len(KEYS)))
    calls = wait(store, 24)
    store.run(store.db.queue(Q).pause())
    store.pass_time(RaftOptions().heartbeat_seconds)
    enqueue(store, *KEYS)
    store.pass_time(1.0)
    assert not any(call.answers for call in calls)
    store.run(store.db.queue(Q).resume())
    store.until(lambda: len(given(calls)) == len(KEYS), 1.0)
    assert ids(calls) == KEYS
