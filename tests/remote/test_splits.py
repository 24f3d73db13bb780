"""Splits that a client of three nodes asks for, over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from postroom.errors import AccessDenied, Invalid, TransactionConflict, Unavailable
from postroom.limits import LOCK_ELSEWHERE_SECONDS_MAX
from postroom.messaging.requests import ReapQueue
from postroom.ranges.contract import Role
from postroom.ranges.listing import ListRanges, RangeInfo
from postroom.ranges.requests import Get, Now, ReleaseLocks
from postroom.ranges.split.requests import AwaitSplit, CancelSplit, NewRangeId, PrepareSplit
from postroom.server.hosted_range import HostedRange
from tests.remote.scripted_nodes import Asked
from tests.remote.streams import DatabaseOverStreams, Streams
from tests.server.hosting import ThreeNodes

KEYS = (b"a", b"m", b"n", b"z")


class SplitNodes(ThreeNodes):
    """Three nodes with one range, which may not have all of its halves yet."""

    def __init__(self) -> None:
        super().__init__(b"")

    def leader(self, range_id: int) -> int | None:
        for node_id, node in self.nodes.items():
            hosted = node.replicas.hosted.get(range_id)
            if hosted is not None and hosted.replica.serves:
                return node_id
        return None

    def everywhere(self, range_id: int) -> bool:
        """Return whether all nodes that run have a range."""
        return all(range_id in node.replicas.hosted for node in self.nodes.values())

    def replicas(self, range_id: int) -> list[HostedRange]:
        return [node.replicas.hosted[range_id] for node in self.nodes.values()]


class MortalStreams(Streams):
    """The streams to nodes that may crash."""

    def __init__(self, nodes: ThreeNodes) -> None:
        self._addresses: dict[int, str] = {}
        self._failed: list[int] = []
        super().__init__(nodes, Role.ADMIN)

    def open(self, link: int, address: str) -> None:
        self._addresses[link] = address
        if address in self.sessions:
            super().open(link, address)
        else:
            self._failed.append(link)

    def close(self, link: int) -> None:
        self._open.pop(link, None)

    def crash(self, node_id: int) -> None:
        """End a node in the middle of things, and its streams."""
        self.nodes.crash(node_id)
        address = f"n:{node_id}"
        del self.sessions[address]
        ended = [link for link in self._open if self._addresses[link] == address]
        self._failed += ended
        for link in ended:
            del self._open[link]

    def _carry(self) -> None:
        while self._failed:
            self.router.disconnected(self._failed.pop(), Unavailable("the node is gone"))
        super()._carry()


@pytest.fixture
def three() -> Iterator[SplitNodes]:
    nodes = SplitNodes()
    yield nodes
    nodes.close()


def split(client: Streams, key: bytes) -> RangeInfo:
    """Split at a key, as ``db.split`` does."""
    range_id = client.ask(NewRangeId())
    client.ask(PrepareSplit(key, range_id))
    made: RangeInfo = client.ask(AwaitSplit(key))
    assert (made.id, made.start) == (range_id, key)
    return made


def put_all(client: Streams, value: bytes, numbers: Iterator[int]) -> None:
    client.ask(Now())
    for key in KEYS:
        client.put(next(numbers), key, value)


@pytest.fixture
def numbers() -> Iterator[int]:
    return iter(range(1, 1000))


def test_each_range_is_split_on_all_nodes(three: SplitNodes, numbers: Iterator[int]) -> None:
    client = Streams(three, Role.ADMIN)
    put_all(client, b"before", numbers)
    assert split(client, b"m").copies == (1, 2, 3)
    put_all(client, b"between", numbers)
    assert split(client, b"n").start == b"n"
    assert split(client, b"c").end == b"m"
    put_all(client, b"after", numbers)
    listed = client.ask(ListRanges(b"", None))
    assert [(each.id, each.start, each.end) for each in listed] == [
        (1, b"", b"c"), (4, b"c", b"m"), (2, b"m", b"n"), (3, b"n", None),
    ]  # fmt: skip
    assert [client.ask(Get(key)).value for key in KEYS] == [b"after"] * len(KEYS)
    three.until(lambda: three.everywhere(4))
    for each in listed:
        spans = {hosted.replica.bounds.descriptor for hosted in three.replicas(each.id)}
        assert len(spans) == 1
        assert all(hosted.group.members == (1, 2, 3) for hosted in three.replicas(each.id))


def test_the_holder_of_the_lease_leads_the_right_half_within_a_moment(three: SplitNodes) -> None:
    client = Streams(three, Role.ADMIN)
    client.ask(Get(b"a"))
    began = three.clock.seconds
    made = split(client, b"m")
    assert made.leader == three.leader(1)
    assert three.clock.seconds - began < 0.2


@pytest.mark.parametrize("role", [Role.READ, Role.WRITE])
@pytest.mark.parametrize(
    "request_", [NewRangeId(), PrepareSplit(b"m", 2), AwaitSplit(b"m"), CancelSplit(b"m")]
)
def test_a_client_that_is_no_administrator_is_refused(
    three: SplitNodes, role: Role, request_: Any
) -> None:
    client = Streams(three, role)
    with pytest.raises(AccessDenied):
        client.ask(request_)


def test_a_range_does_not_begin_twice_at_a_key(three: SplitNodes) -> None:
    client = Streams(three, Role.ADMIN)
    split(client, b"m")
    for key in (b"", b"m"):
        with pytest.raises(Invalid, match="begins at"):
            client.ask(PrepareSplit(key, client.ask(NewRangeId())))


def test_ids_are_given_out_once_by_whatever_node_leads(three: SplitNodes) -> None:
    client = Streams(three, Role.ADMIN)
    given = []
    for node_id in (1, 2, 3, 1):
        three.lead(1, node_id)
        given.append(client.ask(NewRangeId()))
    assert given == [2, 3, 4, 5]


@pytest.mark.parametrize("when", ["prepared", "looked", "applied", "led"])
def test_a_split_survives_the_leader(three: SplitNodes, numbers: Iterator[int], when: str) -> None:
    client = MortalStreams(three)
    put_all(client, b"before", numbers)
    leader = three.leader(1)
    assert leader is not None
    range_id = client.ask(NewRangeId())
    prepared = Asked(PrepareSplit(b"m", range_id))
    client.router.submit(prepared)
    hosted = three.hosted(leader, 1)
    if when == "prepared":
        client.until(hosted.replica.listing.splitting)
    elif when == "looked":
        client.until(lambda: hosted.replica.listing.splitting() and prepared.answers)
    elif when == "applied":
        client.until(lambda: range_id in three.nodes[leader].replicas.hosted)
    else:
        client.until(lambda: three.leader(range_id))
    client.crash(leader)
    made = client.ask(AwaitSplit(b"m"))
    assert made.leader != leader
    put_all(client, b"after", numbers)
    assert [client.ask(Get(key)).value for key in KEYS] == [b"after"] * len(KEYS)
    assert [each.id for each in client.ask(ListRanges(b"", None))] == [1, range_id]


def test_another_node_leads_the_right_half_only_after_the_lease_of_the_range(
    three: SplitNodes,
) -> None:
    client = MortalStreams(three)
    client.ask(Get(b"z"))
    leader = three.leader(1)
    assert leader is not None
    lease = three.hosted(leader, 1).replica.lease
    range_id = client.ask(NewRangeId())
    client.router.submit(Asked(PrepareSplit(b"m", range_id)))
    client.until(lambda: three.everywhere(range_id))
    copied = [hosted.replica.lease for hosted in three.replicas(range_id)]
    assert {(each.holder, each.start) for each in copied} >= {(leader, lease.start)}
    client.crash(leader)
    client.until(lambda: three.leader(range_id))
    taken = three.hosted(three.leader(range_id) or 0, range_id).replica.lease
    assert taken.start >= max(each.expiration for each in copied)


def test_a_node_that_was_away_gets_the_right_half_by_the_log(
    three: SplitNodes, numbers: Iterator[int]
) -> None:
    client = Streams(three, Role.ADMIN)
    put_all(client, b"before", numbers)
    away = next(each for each in three.nodes if each != three.leader(1))
    node = three.nodes.pop(away)
    made = split(client, b"m")
    put_all(client, b"after", numbers)
    three.nodes[away] = node
    three.until(lambda: made.id in node.replicas.hosted)
    left, right = node.replicas.hosted[1], node.replicas.hosted[made.id]
    others = three.hosted(three.leader(made.id) or 0, made.id)
    three.until(lambda: right.group.applied_index == others.group.applied_index)
    assert right.replica.bounds.descriptor == others.replica.bounds.descriptor
    assert left.replica.bounds.end == b"m"
    three.lead(1, away)
    three.lead(made.id, away)
    assert [client.ask(Get(key)).value for key in KEYS] == [b"after"] * len(KEYS)


def test_a_range_is_not_split_while_an_older_node_is_heard(
    three: SplitNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Streams(three, Role.ADMIN)
    client.ask(Get(b"a"))
    monkeypatch.setattr("postroom.raft.messages.ENTRIES_VERSION", 1)
    began = three.clock.seconds
    three.until(lambda: three.clock.seconds > began + 3)
    with pytest.raises(Unavailable, match="an older version runs on node"):
        client.ask(PrepareSplit(b"m", client.ask(NewRangeId())))
    monkeypatch.undo()
    three.until(lambda: three.clock.seconds > began + 10)
    split(client, b"m")


def test_the_status_tells_which_node_keeps_a_range_from_splitting(
    three: SplitNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Streams(three, Role.ADMIN)
    leader = three.leader(1)
    assert leader is not None
    monkeypatch.setattr("postroom.messaging.halves.MessagingHalves.must_wait", lambda *_: True)
    client.ask(PrepareSplit(b"m", client.ask(NewRangeId())))
    monkeypatch.setattr("postroom.raft.messages.ENTRIES_VERSION", 1)
    began = three.clock.seconds
    three.until(lambda: three.clock.seconds > began + 3)
    notes = [each.note for each in three.hosted(leader, 1).services.status()]
    assert any("splits at b'm', waits: an older version runs on node" in note for note in notes)


def test_waiting_calls_go_to_the_right_half(three: SplitNodes) -> None:
    client = Streams(three, Role.ADMIN)
    waits = []
    for number in range(50):
        id_ = client.router.client + (2000 + number).to_bytes(8, "big")
        waits.append(Asked(ReapQueue(b"n%02d" % number, 1, 1000, id_, 60.0, wait=True)))
        client.router.submit(waits[-1])
    client.ask(Get(b"a"))
    for cut in range(5):
        split(client, b"n%02d" % (cut * 10 + 5))
    assert not any(each.answers for each in waits)
    for each in waits:
        client.router.submit(Asked(ReleaseLocks(each.request.transaction_id)))
    assert client.ask(Get(b"n30")).value is None


def test_a_client_that_hears_of_a_split_with_its_lock_waits_a_moment_for_one_in_another_range(
    three: SplitNodes,
) -> None:
    client, other = DatabaseOverStreams(three), DatabaseOverStreams(three, seed=4)
    other.run(other.db.split(b"m"))
    holder, waiting = other.db.begin(), client.db.begin()
    other.run(holder.get_for_update(b"a"))
    client.run(waiting.get_for_update(b"z"))
    client.run(client.db.get(b"a"))  # it knows of both ranges now
    locked = client.start(waiting.get_for_update(b"a"))
    client.until(lambda: client.go_on(locked), 2 * LOCK_ELSEWHERE_SECONDS_MAX)
    with pytest.raises(TransactionConflict, match="did not end in time"):
        locked.result()
