"""Forged and senseless messages about transactions over several ranges change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from postroom.errors import TransactionTooLarge, Unavailable
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.limits import PREPARED_BYTES_MAX, PREPARED_MAX, PREPARED_RECORD_BYTES_MAX
from postroom.ranges.contract import Role
from postroom.ranges.requests import CommitTransaction, Get, GetMany, Increment, Put, Scan
from postroom.ranges.transactions.requests import Ballot, Prepare, Push, Refresh, Resolve
from postroom.server.call_frames import CALL_FRAME
from postroom.server.cluster.sessions import Sessions
from tests.attacks.hostile import memory_below
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.ranges.transactions.participant import Participant, transaction_id
from tests.remote.session_client import Client
from tests.server.hosting import ThreeNodes, cut

HERE, THERE = b"a", b"z"
BALLOT = Ballot(1, 1, 1)
ID = b"a client" + bytes(8)
FAR = (1 << 62) - 1
MIB = 1024 * 1024


# --- clients

FORGED: list[Any] = [
    Prepare(ID, BALLOT, HERE, 1, 0, [], [], [Put(HERE, b"forged")]),
    Resolve(ID, BALLOT, 0, b"", None),
    Resolve(ID, BALLOT, FAR, b"", None),
    Push(HERE, ID, BALLOT, FAR, 1, ID),
]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("request_", FORGED, ids=lambda each: type(each).__name__)
def test_a_client_may_not_send_requests_of_ranges(request_: Any, role: Role) -> None:
    store = Store()
    cut(store.node, b"m")
    store.driver.settle()
    before, last = store.dump(), store.node.clock.last()
    client = Client(Sessions(store.node))
    client.session.role = role
    client.ask(request_)
    store.driver.settle()
    client.read()
    assert not client.answers
    assert client.failures or client.session.ended
    assert store.dump() == before
    assert store.node.clock.last() < last + from_seconds(3600.0)
    store.db.close()


@pytest.mark.parametrize(
    "request_",
    [Get(THERE, FAR), GetMany([THERE], FAR), Scan(b"m", None, FAR, 9, 0),
     Refresh([THERE], [], 1, FAR)],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_a_read_in_the_far_future_of_what_is_prepared_moves_no_clock(
    store: ThreeNodes, request_: Any
) -> None:
    commit(store)
    store.until(lambda: store.hosted(2, 2).replica.intents)
    last = store.nodes[1].clock.last()
    asked = Asked(request_)
    store.nodes[2].replicas.submit(asked)
    store.until(lambda: asked.answers)
    assert isinstance(asked.answers[0][1], Exception)
    for node in store.nodes.values():
        assert node.clock.last() < last + from_seconds(3600.0)


# --- nodes


@pytest.fixture
def store() -> Iterator[ThreeNodes]:
    """Return three nodes, of which node 1 leads range 1 and node 2 leads range 2."""
    made = ThreeNodes()
    made.lead(1, 1)
    made.lead(2, 2)
    yield made
    made.close()


def commit(store: ThreeNodes) -> Asked:
    began = store.nodes[1].clock.reading()
    request: CommitTransaction[Any] = CommitTransaction(
        ID, began, 60.0, 0, HERE, [], [], [Increment(HERE), Increment(THERE)]
    )
    asked = Asked(request)
    store.nodes[1].replicas.submit(asked)
    return asked


def frame(message: list[Any]) -> bytes:
    return CALL_FRAME + msgspec.msgpack.encode([message])


@pytest.mark.parametrize(
    "result",
    [[FAR, []], [-1, []], ["soon", []], [[], []], [1], [1, 7], None, 17, [0, False, "more", {}]],
    ids=repr,
)
def test_a_participant_that_answers_nonsense_is_reported_and_changes_nothing(
    store: ThreeNodes, result: Any
) -> None:
    reported: list[Any] = []
    first = store.nodes[1]
    first.on_malformed = reported.append
    asked = commit(store)
    store.until(lambda: first.calls._under_way)
    number, last = next(iter(first.calls._under_way)), first.clock.last()
    assert first.calls._under_way[number].kind is Prepare
    first.calls.take(2, frame([2, number, result, None, last]))
    assert first.clock.last() < last + from_seconds(3600.0)
    assert bool(reported) is (result != [-1, []])  # an old timestamp does no harm
    store.until(lambda: asked.answers)
    assert first.clock.last() < last + from_seconds(3600.0)


@pytest.mark.parametrize("standing", [[FAR, False], ["now", False], [0], 7, {}], ids=repr)
def test_an_anchor_that_answers_nonsense_is_reported_and_ends_nothing(
    store: ThreeNodes, standing: Any
) -> None:
    reported: list[Any] = []
    second = store.nodes[2]
    coordinator = store.hosted(1, 1).replica.transactions.coordinator  # type: ignore[union-attr]
    coordinator._take_answers = lambda: None
    commit(store)
    replica = store.hosted(2, 2).replica
    store.until(lambda: replica.intents)
    second.on_malformed = reported.append
    reader = Asked(Get(THERE))
    second.replicas.submit(reader)
    store.until(lambda: second.calls._under_way)
    number, last = next(iter(second.calls._under_way)), second.clock.last()
    second.calls.take(1, frame([2, number, standing, None, last]))
    is_pending = standing == [0]  # the transaction is dead then, as far as its anchor says
    assert bool(reported) is not is_pending
    assert second.clock.last() < last + from_seconds(3600.0)
    if not is_pending:
        assert len(replica.intents) == 1
        assert not reader.answers


@pytest.mark.parametrize(
    "request_",
    [
        ["resolve", ID, [1, 1, 1], FAR, b"m", None],
        ["resolve", ID, [1, 1], 1, b"m", None],
        ["resolve", b"short", [1, 1, 1], 1, b"m", None],
        ["push", THERE, ID, [1, 1, 1], FAR, 0, b""],
        ["prepare", ID, [1, 1, 1], HERE, 1, 0, [], [], [["enqueue_message"]]],
        ["prepare", ID, [1, 1, 1], HERE, 1, 0, [THERE], [], [["delete_range", 7]]],
        ["commit_transaction", ID, 1, 60.0, 0, THERE, [], [], []],
    ],
    ids=lambda each: f"{each[0]}-{each[1:4]}",
)
def test_a_node_that_asks_nonsense_is_reported_and_changes_nothing(
    store: ThreeNodes, request_: Any
) -> None:
    reported: list[Any] = []
    second = store.nodes[2]
    second.on_malformed = reported.append
    last = second.clock.last()
    second.calls.take(1, frame([1, last, 2, request_]))
    assert reported == [1]
    assert second.clock.last() < last + from_seconds(3600.0)
    assert not store.hosted(2, 2).replica.intents


# --- limits


def test_ten_thousand_prepared_transactions_are_the_most() -> None:
    store = Participant()
    for number in range(PREPARED_MAX):
        store.prepare(transaction_id(), Put(b"%05d" % number, b""))
    with pytest.raises(Unavailable, match="10,000 transactions"):
        store.prepare(transaction_id(), Put(b"k", b""))
    assert store.records() == PREPARED_MAX
    assert store.replica.sizes()["intents"] == PREPARED_MAX


def test_prepared_records_of_64_mebibytes_are_the_most() -> None:
    store = Participant()
    size = PREPARED_RECORD_BYTES_MAX - 4096
    ids = [transaction_id() for _ in range(PREPARED_BYTES_MAX // size)]
    values = [bytes(MIB)] * (size // MIB)
    with memory_below(3 * PREPARED_BYTES_MAX):
        for number, id_ in enumerate(ids):
            writes = [Put(b"%d/%d" % (number, each), value) for each, value in enumerate(values)]
            store.prepare(id_, *writes, Put(b"%d" % number, bytes(MIB - 8192)))
        with pytest.raises(Unavailable, match="67,108,864 bytes"):
            store.prepare(transaction_id(), *[Put(b"k%d" % each, bytes(MIB)) for each in range(2)])
        assert store.intents.size_bytes <= PREPARED_BYTES_MAX
        with pytest.raises(TransactionTooLarge):
            store.prepare(transaction_id(), *[Put(b"k%d" % each, bytes(MIB)) for each in range(9)])
    prefix = keys.prepared_prefix(store.range_id)
    stored = [value for _, value in store.engine.iterate(prefix, keys.after_prefix(prefix))]
    assert sum(map(len, stored)) == store.intents.size_bytes
    for id_ in ids:
        store.resolve(id_, 0)
    assert store.intents.size_bytes == 0
