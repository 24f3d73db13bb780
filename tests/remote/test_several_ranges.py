"""Clients of nodes with several ranges: sessions, and real routers before them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from postroom.errors import Invalid, VersionMismatch
from postroom.messaging.requests import CancelScheduled
from postroom.protocol import frames
from postroom.protocol.failures import WRONG_RANGE, error_from
from postroom.protocol.requests import REVISION
from postroom.ranges.descriptor import RangeDescriptor
from postroom.ranges.listing import ListRanges
from postroom.ranges.requests import CommitTransaction, Get, GetMany, Now, Protect, Scan, Unprotect
from postroom.ranges.transactions.requests import Refresh
from postroom.server.cluster import session_ranges
from postroom.server.cluster.session_ranges import concerned_ranges, led_ranges
from postroom.server.cluster.sessions import Sessions
from tests.client.stores import Store
from tests.remote.client_names import secret_of
from tests.remote.session_client import Client
from tests.remote.streams import Streams
from tests.server.hosting import ThreeNodes, cut

KEYS = (b"a", b"m", b"z")


@pytest.fixture
def store() -> Iterator[Store]:
    """Return a store whose node has three ranges, and a remote client."""
    made = Store(remote=True)
    made.db.put(b"k", b"before")
    cut(made.node, b"m", b"z")
    made.driver.settle()
    yield made
    made.db.close()


def generation(store: Store, range_id: int) -> int:
    return store.node.replicas.by_id(range_id).bounds.descriptor.generation


# --- a store, through a session


def test_keys_of_several_ranges_are_written_and_read(store: Store) -> None:
    for key in KEYS:
        store.db.put(key, b"value of " + key)
    assert [store.db.get(key) for key in (*KEYS, b"k")] == [
        *(b"value of " + key for key in KEYS), b"before",
    ]  # fmt: skip


def test_all_ranges_are_listed_in_the_order_of_their_keys(store: Store) -> None:
    listed = store.driver.run(_answer(store, ListRanges(b"b", None)))
    assert [(each.id, each.start, each.end) for each in listed] == [
        (1, b"", b"m"), (2, b"m", b"z"), (3, b"z", None),
    ]  # fmt: skip
    listed = store.driver.run(_answer(store, ListRanges(b"m", b"n")))
    assert [each.id for each in listed] == [2]


async def _answer(store: Store, request: Any) -> Any:
    return await store.driver.send(request)


def test_a_transaction_over_several_ranges_is_committed(store: Store) -> None:
    with store.db.begin() as tx:
        assert tx.get(b"z") is None
        tx.put(b"a", b"1")
        tx.put(b"z", b"2")
    assert (store.db.get(b"a"), store.db.get(b"z")) == (b"1", b"2")
    with store.db.begin() as tx:
        tx.put(b"m", b"1")
        tx.put(b"n", b"2")
    assert store.db.get(b"n") == b"2"


def test_a_record_of_a_range_that_does_not_exist_is_told(store: Store) -> None:
    assert store.db.discard([(1).to_bytes(8, "big").hex() + 20 * "00"]) == 0
    for key in KEYS:  # now the client knows of several ranges
        assert store.db.get(key) is None
    with pytest.raises(Invalid, match="there is no range 77"):
        store.db.discard([(77).to_bytes(8, "big").hex() + 20 * "00"])
    assert store.db.discard([(3).to_bytes(8, "big").hex() + 20 * "00"]) == 0


# --- sessions


@pytest.fixture
def cut_store() -> Iterator[Store]:
    made = Store()
    cut(made.node, b"m", b"z")
    made.driver.settle()
    yield made
    made.db.close()


def new_client(store: Store, sessions: Sessions) -> Client:
    """Return a client that knows of several ranges."""
    client = Client(sessions)
    client.session = sessions.open("somebody", lambda: None)
    client.say(0, frames.PROTOCOL_VERSION, secret_of(b""), 2, REVISION)
    return client


def ask(store: Store, client: Client, request: Any, *named_range: int) -> Any:
    """Return the answer to a request that names a range, or its failure."""
    number = len(client.answers) + len(client.failures) + 1
    named = [(number, *named_range)] if named_range else []
    client.say(1, client.clock, [(number, request)], (), False, named)
    store.driver.settle()
    client.read()
    return client.answers.get(number, client.failures.get(number))


def test_a_client_of_the_first_revision_is_served_while_there_is_one_range() -> None:
    store = Store()
    sessions = Sessions(store.node)
    client = Client(sessions)
    client.ask(Get(b"k"))
    store.driver.settle()
    client.read()
    assert len(client.answers) == 1
    cut(store.node, b"m")
    client.ask(Get(b"k"), first=2)
    (goodbye,) = client.read()
    assert isinstance(goodbye, frames.Goodbye)
    assert isinstance(error_from(goodbye.failure), VersionMismatch)
    assert "upgrade the client" in goodbye.failure[1]
    assert client.session.ended
    again = Client(sessions, stream=2)
    (goodbye,) = again.read()
    assert isinstance(error_from(goodbye.failure), VersionMismatch)
    store.db.close()


def test_a_node_tells_which_ranges_it_leads_once_it_has_several(cut_store: Store) -> None:
    client = new_client(cut_store, Sessions(cut_store.node))
    (welcome,) = [each for each in client.read() if isinstance(each, frames.Welcome)]
    assert [(each.range_id, each.start) for each in welcome.leads] == [
        (1, b""), (2, b"m"), (3, b"z"),
    ]  # fmt: skip
    alone = Store()
    client = new_client(alone, Sessions(alone.node))
    assert [each.leads for each in client.read() if isinstance(each, frames.Welcome)] == [[]]
    alone.db.close()


def test_a_node_that_leads_two_thousand_ranges_tells_of_all() -> None:
    descriptors = [RangeDescriptor(id_, b"%09d" % id_, b"%09d" % (id_ + 1)) for id_ in range(2000)]
    replicas: Any = SimpleNamespace(hosted={
        each.range_id: SimpleNamespace(replica=SimpleNamespace(
            bounds=SimpleNamespace(descriptor=each), group=SimpleNamespace(is_leader=True)
        ))
        for each in descriptors
    })  # fmt: skip
    assert led_ranges(replicas, None) == descriptors
    frame = frames.encode(frames.Welcome(1, 0, 1, 1, [], 100, REVISION, descriptors))
    welcome = frames.from_node(frame)
    assert isinstance(welcome, frames.Welcome)
    assert welcome.leads == descriptors


class Unseen(dict[int, Any]):
    """The ranges of a node, which must not be gone through."""

    def values(self) -> Any:
        raise AssertionError("all ranges are looked at")


def test_ranges_of_keys_are_told_without_a_look_at_all_others(cut_store: Store) -> None:
    replicas = cut_store.node.replicas
    replicas.hosted = Unseen(replicas.hosted)
    for request, ids in ((GetMany([b"a", b"n"], 0), [1, 2]), (Scan(b"n", None, 0, 1, 1), [2, 3])):
        told = concerned_ranges(replicas, request, 0, None)
        assert [each.range_id for each in told] == ids
    replicas.hosted = dict(replicas.hosted)


def test_a_look_at_all_ranges_takes_its_share_of_a_turn(
    cut_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[int] = []
    monkeypatch.setattr(session_ranges, "LED_RANGES_A_STEP", 1)
    monkeypatch.setattr(cut_store.node.replicas, "charge", charged.append)
    assert len(concerned_ranges(cut_store.node.replicas, Now(), 99, None)) == 3
    assert charged == [3]


def test_a_request_that_names_its_range_is_served(cut_store: Store) -> None:
    client = new_client(cut_store, Sessions(cut_store.node))
    assert ask(cut_store, client, Get(b"n"), 2, generation(cut_store, 2))[0] is None
    assert ask(cut_store, client, Now(), 3, generation(cut_store, 3)) > 0


@pytest.mark.parametrize(
    ("request_", "address", "expected"),
    [
        (Get(b"n"), (1, 0), [2, 1]),
        (Get(b"n"), (7, 1), [2]),
        (Get(b"n"), (2, 99), [2]),
        (GetMany([b"a", b"n"], 0), (1, 0), [1, 2]),
        (GetMany([b"a", b"n"], 0), (), [1, 2]),
        (Now(), (7, 1), [1, 2, 3]),
    ],
)
def test_a_request_for_another_range_is_told_the_right_ones(
    cut_store: Store, request_: Any, address: tuple[int, ...], expected: list[int]
) -> None:
    client = new_client(cut_store, Sessions(cut_store.node))
    if address and not address[1]:
        address = address[0], generation(cut_store, address[0])
    name, _, extra = ask(cut_store, client, request_, *address)
    assert name == WRONG_RANGE
    told = [msgspec.convert(each, RangeDescriptor) for each in extra]
    assert [each.range_id for each in told] == expected


@pytest.mark.parametrize(
    ("range_id", "named", "expected"), [(2, (1, 2), [2, 1]), (2, (2, 99), [2]), (77, (), [])]
)
def test_a_request_about_a_record_of_another_range_is_told_the_right_one(
    cut_store: Store, range_id: int, named: tuple[int, ...], expected: list[int]
) -> None:
    client = new_client(cut_store, Sessions(cut_store.node))
    cancel = CancelScheduled([range_id.to_bytes(8, "big") + bytes(29)])
    id_ = client.session.client + bytes(8)
    commit = CommitTransaction(id_, client.clock, 60.0, 0, b"", [], [], [cancel])
    name, _, extra = ask(cut_store, client, commit, *named)
    assert name == WRONG_RANGE
    assert [msgspec.convert(each, RangeDescriptor).range_id for each in extra] == expected


def test_names_of_ranges_without_requests_are_forgotten(cut_store: Store) -> None:
    client = new_client(cut_store, Sessions(cut_store.node))
    for first in range(0, 9000, 3000):
        named = [(number, 2, 1) for number in range(first, first + 3000)]
        client.say(1, client.clock, [(first, Get(b"n"))], (), False, named)
        cut_store.driver.settle()
    assert len(client.session._named) <= 3000
    assert not client.session.ended


# --- three nodes


@pytest.fixture
def three() -> Iterator[ThreeNodes]:
    nodes = ThreeNodes()
    yield nodes
    nodes.close()


def test_a_client_follows_ranges_that_different_nodes_lead(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 2)
    client = Streams(three)
    client.ask(Now())
    client.put(1, b"a", b"left")
    client.put(2, b"z", b"right")
    assert client.ask(Get(b"a")).value == b"left"
    assert client.ask(Get(b"z")).value == b"right"
    three.lead(2, 3)
    client.put(3, b"z", b"moved")
    three.lead(1, 3)
    assert client.ask(Get(b"z")).value == b"moved"
    assert client.ask(Get(b"a")).value == b"left"
    listed = client.ask(ListRanges(b"", None))
    assert [(each.id, each.leader) for each in listed] == [(1, 3), (2, 3)]


def test_a_question_for_later_changes_goes_to_all_ranges_that_it_concerns(
    three: ThreeNodes,
) -> None:
    three.lead(1, 1)
    three.lead(2, 2)
    client = Streams(three)
    before = client.ask(Now())
    client.put(1, b"a", b"left")
    client.put(2, b"z", b"right")
    client.put(3, b"y", b"right")
    latest = client.ask(Refresh([b"a", b"z"], [], before))
    assert latest == max(client.ask(Refresh([key], [], before)) for key in (b"a", b"z"))
    assert client.ask(Refresh([], [(b"b", None)], latest)) > latest
    assert client.ask(Refresh([b"b"], [(b"x", b"y")], before)) == 0


def test_a_protection_is_taken_back_after_another_range_was_led_anew(three: ThreeNodes) -> None:
    three.lead(1, 1)
    three.lead(2, 2)
    client, protections = Streams(three), three.hosted(1, 1).replica.protections
    timestamp = client.ask(Protect())
    three.lead(2, 1)
    client.ask(Get(b"z"))
    client.ask(Now())
    client.until(lambda: len(protections) == 1)
    client.ask(Unprotect(timestamp))
    assert not len(protections)
