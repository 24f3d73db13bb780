"""Ranges that come to a node: by a split that is applied, or from the other nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.kv import keys
from postroom.raft.interface import NodeId, RaftOptions
from postroom.raft.messages import Append, Appended, Chunk, Message, encode_frame
from postroom.ranges import state
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key
from postroom.server.incoming_ranges import RANGES_PER_PEER
from tests.server.split_cluster import SHORT_LOG, SplitCluster, splits_by_hand


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    with splits_by_hand():
        yield


@pytest.fixture(params=[False, True], ids=["plain", "logged"])
def has_log(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def no_group(group_id: int, node_id: int) -> object:
    """Return what keeps all messages of a group from a node."""

    def blocks(_: int, to: NodeId, group: int, __: Message) -> bool:
        return to == node_id and group == group_id

    return blocks


def filled(cluster: SplitCluster) -> SplitCluster:
    for key in (b"a", b"b", b"m", b"z"):
        cluster.put(key, b"value of " + key)
    return cluster


def test_a_split_begins_a_range_at_each_node(has_log: bool) -> None:
    cluster = filled(SplitCluster(has_log=has_log))
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.settle(1, 2)
    for node in cluster.nodes.values():
        assert node.replicas.by_key(b"a") is node.replicas.by_id(1)
        assert node.replicas.by_key(b"m") is node.replicas.by_id(2)
        assert node.replicas.by_id(2).group.core.journal.members.voters == (1, 2, 3)
    cluster.close()


def test_a_range_goes_on_after_all_nodes_are_opened_again(has_log: bool) -> None:
    cluster = filled(SplitCluster(has_log=has_log))
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.settle(1, 2)
    for node_id in (1, 2, 3):
        cluster.crash(node_id)
    for node_id in (1, 2, 3):
        cluster.start(node_id)
    cluster.put(b"n", b"again")
    cluster.put(b"b", b"again")
    cluster.settle(1, 2)
    cluster.close()


# --- a follower that lags


def test_a_follower_that_lags_takes_the_split_from_its_log(has_log: bool) -> None:
    """Its replica of the right half holds nothing until then, and no snapshot is needed."""
    cluster = filled(SplitCluster(has_log=has_log))
    cluster.blocking = [no_group(1, 3)]
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.until(lambda: cluster.hosted(3, 2))
    cluster.run(3.0)
    lagging = cluster.hosted(3, 2)
    assert lagging is not None
    assert lagging.group.holds_nothing
    assert not lagging.group.is_installing
    assert cluster.hosted(3, 1).replica.bounds.is_whole  # type: ignore[union-attr]
    cluster.blocking.clear()
    cluster.settle(1, 2)
    cluster.close()


def test_a_follower_that_lags_for_a_moment_makes_no_replica_that_holds_nothing() -> None:
    cluster = filled(SplitCluster())
    sent = list[type[Message]]()

    def noted(_: int, to: NodeId, group: int, message: Message) -> bool:
        if group == 2 and to == 3:
            sent.append(type(message))
        return group == 1 and to == 3

    cluster.blocking = [noted]
    cluster.split(b"m")
    cluster.nodes[1].replicas.hosted[2].group.hurry()
    cluster.run(0.5)
    assert cluster.hosted(3, 2) is None
    assert Append in sent
    cluster.blocking = [lambda *told: noted(*told) and False]
    cluster.put(b"n")
    cluster.settle(1, 2)
    assert Chunk not in sent
    cluster.close()


def test_a_follower_that_lags_takes_both_halves_from_snapshots(has_log: bool) -> None:
    """The right half comes first, and is refused until the left half has become smaller."""
    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    cluster.blocking = [no_group(1, 3)]
    cluster.split(b"m")
    for number in range(20):
        cluster.put(b"n%d" % number)
        cluster.put(b"c%d" % number)
    cluster.run(3.0)
    assert cluster.hosted(3, 2).group.holds_nothing  # type: ignore[union-attr]
    cluster.blocking.clear()
    cluster.settle(1, 2)
    cluster.close()


def test_a_follower_takes_a_snapshot_of_before_the_split_and_then_the_split(has_log: bool) -> None:
    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    cluster.blocking = [no_group(1, 3)]
    for number in range(20):
        cluster.put(b"n%d" % number)
    cluster.blocking.clear()
    cluster.until(lambda: cluster.hosted(3, 1).group.is_installing)  # type: ignore[union-attr]
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.settle(1, 2)
    cluster.close()


def test_a_split_is_applied_in_the_turn_in_which_its_range_came_by_a_snapshot(
    has_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node does not have the keys of the range yet, by its map of spans."""
    monkeypatch.setattr(state, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(state, "PIECE_BYTES", 1000)
    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    for number in range(40):
        cluster.put(b"n%d" % number, bytes(1000))
    cluster.crash(3)
    cluster.split(b"m")
    for number in range(20):
        cluster.put(b"c%d" % number)
    cluster.start(3)
    cluster.until(lambda: (hosted := cluster.hosted(3, 2)) and hosted.group.is_installing)
    cluster.split(b"t", 3, range_id=2)
    group = cluster.nodes[3].replicas.by_id(2).group
    cluster.until(lambda: group.core.commit_index > group.applied_index)
    assert group.is_installing
    cluster.put(b"u")
    cluster.settle(1, 2, 3)
    cluster.close()


def test_a_snapshot_that_began_before_a_split_begins_anew_when_it_is_refused(has_log: bool) -> None:
    """The node has the right half already, which has keys of the snapshot."""

    def no_chunk(_: int, to: NodeId, group: int, message: Message) -> bool:
        return to == 3 and group == 2 and isinstance(message, Chunk)

    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    cluster.crash(3)
    cluster.split(b"m")
    for number in range(20):
        cluster.put(b"c%d" % number)
    cluster.blocking = [no_chunk]
    cluster.start(3)
    cluster.until(lambda: cluster.hosted(3, 2))
    leader = cluster.hosted(cluster.awaited_leader(2), 2)
    assert leader is not None
    cluster.until(lambda: leader.group._feeding.snapshots.are_under_way)
    cluster.split(b"t", 3, range_id=2)
    cluster.until(lambda: cluster.is_level(3))
    assert cluster.hosted(3, 2).group.holds_nothing  # type: ignore[union-attr]
    cluster.blocking.clear()
    cluster.settle(1, 2, 3)
    cluster.close()


def test_a_node_that_was_away_gets_what_several_splits_have_made(has_log: bool) -> None:
    cluster = filled(SplitCluster(SHORT_LOG, has_log=has_log))
    cluster.crash(3)
    cluster.split(b"m")
    cluster.put(b"x")
    cluster.split(b"t", 3, range_id=2)
    cluster.split(b"b", 4)
    for number in range(20):
        for key in (b"a", b"c", b"n", b"u"):
            cluster.put(key + b"%d" % number)
    cluster.start(3)
    cluster.settle(1, 2, 3, 4)
    cluster.close()


def test_a_request_for_a_vote_that_comes_before_the_split_is_applied_counts_when_it_is() -> None:
    cluster = filled(SplitCluster())
    cluster.until(lambda: cluster.is_level(1))
    known = cluster.nodes[1].root.group.applied_index

    def tells_of_the_split(_: int, to: NodeId, group: int, message: Message) -> bool:
        is_told = isinstance(message, Append) and message.commit_index > known
        return is_told and to != 1 and group == 1

    cluster.blocking = [tells_of_the_split]
    cluster.split(b"m")
    assert cluster.hosted(2, 2) is None
    assert cluster.hosted(3, 2) is None
    group = cluster.nodes[1].replicas.hosted[2].group
    group.hurry()
    cluster.run(0.3)
    assert not group.is_leader
    began = cluster.clock.seconds
    cluster.blocking.clear()
    cluster.until(lambda: group.is_leader)
    assert cluster.clock.seconds - began < 0.15, "it has waited for a time-out"
    cluster.close()


def test_a_node_that_has_lost_the_state_of_a_split_has_the_promises_of_the_right_half() -> None:
    """The log of the right half tells that the split was agreed on: it is applied again."""
    cluster = SplitCluster(has_log=True)
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.until(lambda: cluster.is_level(1, 2))
    group = cluster.nodes[2].replicas.by_id(2).group
    before = (group.term, group.core.vote, group.last_index)
    assert group.last_index > 2
    disk = cluster.disks[2]
    assert disk.durable.get(descriptor_key(2)) is None
    disk._unsynced.clear()
    cluster.crash(2, power=False)
    cluster.start(2)
    again = cluster.nodes[2].replicas.by_id(2).group
    assert (again.term, again.core.vote, again.last_index) == before
    cluster.settle(1, 2)
    cluster.close()


# --- replicas that hold nothing


def snapshots_wait(cluster: SplitCluster) -> None:
    """Keep node 3 from the split, and let it have a replica that holds nothing."""
    cluster.blocking = [no_group(1, 3)]
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.until(lambda: cluster.hosted(3, 2))


def test_a_replica_that_holds_nothing_votes_for_nobody() -> None:
    cluster = filled(SplitCluster())
    snapshots_wait(cluster)
    leader = cluster.awaited_leader(2)
    cluster.crash(3 - leader)
    cluster.nodes[leader].replicas.hosted[2].group.step_down()
    cluster.run(5.0)
    assert cluster.leader(2) is None
    cluster.start(3 - leader)
    assert cluster.awaited_leader(2) != 3
    cluster.blocking.clear()
    cluster.settle(1, 2)
    cluster.close()


def test_a_replica_that_holds_nothing_is_forgotten_when_nothing_is_heard_of_it() -> None:
    cluster = filled(SplitCluster(RaftOptions(), has_log=True))
    snapshots_wait(cluster)
    cluster.blocking = [no_group(2, 3), no_group(1, 3)]
    cluster.until(lambda: cluster.hosted(3, 2) is None)
    assert list(cluster.nodes[3].replicas.hosted) == [1]
    cluster.blocking.clear()
    cluster.settle(1, 2)
    cluster.close()


def test_a_node_that_is_opened_again_forgets_a_snapshot_that_never_comes_whole() -> None:
    cluster = filled(SplitCluster(SHORT_LOG))
    for number in range(5):
        cluster.put(b"n%d" % number, bytes(200_000))
    cluster.crash(3)
    cluster.split(b"m")
    for number in range(20):
        cluster.put(b"c%d" % number)

    def unfinished(_: int, to: NodeId, group: int, message: Message) -> bool:
        return to == 3 and group == 2 and isinstance(message, Chunk) and message.ordinal > 1

    cluster.blocking = [unfinished]
    cluster.start(3)
    cluster.until(
        lambda: (hosted := cluster.hosted(3, 2)) and hosted.group._receiver._spool.next_ordinal == 2
    )
    cluster.crash(3, power=False)
    cluster.blocking = [no_group(2, 3)]
    cluster.start(3)
    assert cluster.hosted(3, 2) is not None
    cluster.until(lambda: cluster.hosted(3, 2) is None)
    cluster.blocking.clear()
    cluster.settle(1, 2)
    cluster.close()


# --- crashes


def lagging_node(cluster: SplitCluster) -> None:
    """Have node 3 follow a split by its log, from a replica that holds nothing."""
    snapshots_wait(cluster)
    cluster.blocking.clear()
    cluster.until(lambda: cluster.is_level(1, 2))
    cluster.put(b"z", b"later")
    cluster.put(b"a", b"later")
    cluster.until(lambda: cluster.is_level(1, 2))


def lagging_node_with_short_logs(cluster: SplitCluster) -> None:
    """Have node 3 follow a split by snapshots of both halves."""
    cluster.blocking = [no_group(1, 3)]
    cluster.split(b"m")
    for number in range(12):
        cluster.put(b"n%d" % number)
        cluster.put(b"c%d" % number)
    cluster.run(1.5)
    cluster.blocking.clear()
    cluster.until(lambda: cluster.is_level(1, 2))
    cluster.put(b"z", b"later")
    cluster.until(lambda: cluster.is_level(1, 2))


def plainly(cluster: SplitCluster) -> None:
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.put(b"z", b"later")
    cluster.until(lambda: cluster.is_level(1, 2))


SCENARIOS = {
    "log": (lagging_node, RaftOptions()),
    "snapshot": (lagging_node_with_short_logs, SHORT_LOG),
    "plain": (plainly, RaftOptions()),
}


def writes_of(name: str, node_id: int, *, has_log: bool) -> int:
    scenario, options = SCENARIOS[name]
    cluster = filled(SplitCluster(options, has_log=has_log))
    before = cluster.disks[node_id].writes
    scenario(cluster)
    cluster.close()
    return cluster.disks[node_id].writes - before


@pytest.mark.parametrize("power", [True, False], ids=["power", "process"])
@pytest.mark.parametrize(
    ("name", "node_id"), [("log", 3), ("snapshot", 3), ("plain", 1), ("plain", 2)]
)
def test_a_crash_before_every_write_while_a_range_begins(
    name: str, node_id: int, power: bool
) -> None:
    scenario, options = SCENARIOS[name]
    for number in range(1, writes_of(name, node_id, has_log=True) + 1):
        cluster = filled(SplitCluster(options, has_log=True, seed=number))
        cluster.crash_at(node_id, number, power=power)
        scenario(cluster)
        cluster.disks[node_id].at_write = None
        cluster.settle(1, 2)
        cluster.close()


# --- ranges that nobody has


def named(cluster: SplitCluster, sender: int, *range_ids: int) -> None:
    """Have a node name ranges to node 3, as their leader, in frames of its own."""
    message = Append(7, 5, 5, 5, 5, ())
    for first in range(0, len(range_ids), 2000):
        frame = encode_frame([(each, message) for each in range_ids[first : first + 2000]])
        cluster.network.carry(sender, 3, frame)


def test_a_flood_of_unknown_ranges_takes_little_and_is_forgotten() -> None:
    cluster = filled(SplitCluster())
    node, incoming = cluster.nodes[3], cluster.nodes[3]._incoming
    for start in range(1000, 101_000, 10_000):
        named(cluster, 2, *range(start, start + 10_000))
        cluster.run(0.2)
    assert len(incoming._unknown) == RANGES_PER_PEER
    assert len(node.replicas.hosted) == 1 + RANGES_PER_PEER
    cluster.split(b"m")
    cluster.put(b"n")
    cluster.settle(1, 2)
    cluster.until(lambda: len(node.replicas.hosted) == 2)
    assert incoming._unknown == {}
    assert incoming._named == {}
    assert len(node.consensus.groups) == 2
    stored = node.engine.iterate(keys.RAFT_LOG, keys.TRANSACTION)
    assert {key[1:9] for key, _ in stored} == {keys.u64(1), keys.u64(2)}
    cluster.close()


def test_ranges_that_one_peer_names_leave_room_for_those_of_others() -> None:
    cluster = filled(SplitCluster())
    named(cluster, 2, *range(1000, 3000))
    cluster.run(0.2)
    named(cluster, 1, 7000)
    cluster.run(0.2)
    assert 7000 in cluster.nodes[3]._incoming._unknown
    cluster.close()


def test_a_node_that_is_not_of_the_cluster_is_not_heard() -> None:
    cluster = filled(SplitCluster())
    cluster.network.attach(9)
    named(cluster, 9, 1000)
    cluster.run(2.0)
    assert cluster.nodes[3]._incoming._unknown == {}
    cluster.close()


def test_answers_for_an_unknown_range_are_not_heard() -> None:
    cluster = filled(SplitCluster())
    cluster.network.carry(2, 3, encode_frame([(1000, Appended(7, success=True, index=3))]))
    cluster.run(0.2)
    assert cluster.nodes[3]._incoming._unknown == {}
    cluster.close()


# --- spans


def test_a_snapshot_is_refused_while_another_range_has_a_key_of_it() -> None:
    cluster = filled(SplitCluster())
    cluster.split(b"m")
    cluster.settle(1, 2)
    replicas = cluster.nodes[1].replicas
    for start, end, is_free in (
        (b"", None, False), (b"a", b"b", False), (b"lz", b"m", False), (b"m", None, True),
        (b"m", b"n", True), (b"z", None, True), (b"m", b"m", True),
    ):  # fmt: skip
        assert replicas.may_take(2, RangeDescriptor(2, start, end)) is is_free
    state = replicas.by_id(2).state
    first = next(state.open_snapshot().chunks)
    assert state.may_install(first, is_whole=False)
    assert state.arriving is None
    assert state.may_install(first, is_whole=True)
    replicas.by_id(2).bounds.take(RangeDescriptor(2, b"", b""))
    assert not replicas.may_take(3, RangeDescriptor(3, b"z", None))
    assert replicas.may_take(2, RangeDescriptor(2, b"m", None))
    cluster.close()


def test_many_ranges_serve_again_after_the_node_that_leads_them_was_killed() -> None:
    """Each of them elects once."""
    count = 60
    cluster = SplitCluster(RaftOptions())
    for number in range(count, 1, -1):
        cluster.split(b"%04d" % number, number)
    ids = tuple(range(1, count + 1))
    for range_id in ids:
        cluster.lead(range_id, 1)
    cluster.until(lambda: cluster.is_level(*ids))
    terms = {each: cluster.nodes[2].replicas.by_id(each).group.term for each in ids}
    cluster.crash(1)
    began = cluster.clock.seconds
    cluster.until(lambda: all(cluster.leader(each) for each in ids))
    assert cluster.clock.seconds - began < 5.0
    later = {each: cluster.nodes[2].replicas.by_id(each).group.term for each in ids}
    assert sum(later[each] - terms[each] for each in ids) < 2 * count
    cluster.close()
